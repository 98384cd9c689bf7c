"""Metrics on held-out examples, with the raw weights or their averages."""
