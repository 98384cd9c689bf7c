"""A run from an empty folder to `result.json`."""
