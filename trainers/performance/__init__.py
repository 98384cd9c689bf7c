"""Programs timed side by side, and estimates of them: `--mode=diagnose`, `tune` and `dry_run`."""
