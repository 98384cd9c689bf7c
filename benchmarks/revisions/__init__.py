"""Compares the step times of two revisions."""
