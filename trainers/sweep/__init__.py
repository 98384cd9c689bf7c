"""Grids and searches: runs of many settings, one after the other or several at once, resumable."""
