"""The words of an error, the page about it, and its exit code."""
