"""Plain tests that take more than three seconds of a processor, and why each does."""

SLOW: dict[str, str] = {}
