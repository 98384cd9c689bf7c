"""Lists and compares runs from their folders: states, metrics, curves and differing settings."""
