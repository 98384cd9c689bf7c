"""Timing of programs: `--mode=diagnose` and `tune`."""
