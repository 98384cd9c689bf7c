"""Grid search: runs of all combinations of values, one after the other or several at once, resumable."""
