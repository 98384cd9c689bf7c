"""Repeats a step of a run: `--mode=replay` and `--eager --step`."""
