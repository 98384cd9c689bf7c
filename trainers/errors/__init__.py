"""Error texts, their documentation page, and exit codes."""
