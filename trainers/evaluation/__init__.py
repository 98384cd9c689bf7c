"""Figures of held-out examples, by the raw weights or their averages."""
