"""Exports a run's task to files that load without this project: written, compared in a new process, then renamed."""
