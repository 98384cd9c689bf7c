"""A grid of runs, one after the other or some at once, that goes on where it stopped."""
