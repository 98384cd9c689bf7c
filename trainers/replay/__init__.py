"""A moment of a run, taken again: `--mode=replay` and `--eager --step`."""
