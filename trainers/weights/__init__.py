"""Writes the weights of runs for other programs."""
