"""One mode a file: `run(session)` does it and returns the exit code."""
