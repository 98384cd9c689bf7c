"""A linter for gin: it finds every mistake in a configuration before anything is built."""
