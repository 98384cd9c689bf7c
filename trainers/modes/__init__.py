"""One mode per file: `run(session)` runs it and returns the exit code."""
