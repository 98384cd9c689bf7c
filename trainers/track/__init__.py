"""Copies runs to experiment trackers, while they last or afterwards."""
