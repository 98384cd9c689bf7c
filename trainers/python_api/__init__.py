"""Runs from Python: `trainers.load` and `trainers.train`."""
