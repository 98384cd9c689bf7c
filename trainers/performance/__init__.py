"""Timing and estimates of programs: `--mode=diagnose`, `tune` and `dry_run`."""
