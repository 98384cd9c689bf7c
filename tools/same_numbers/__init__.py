"""Trains every configuration at two revisions and compares all results, bit for bit."""
