"""Measures the parts of a step, names the one that holds it up, and tries what could help."""
