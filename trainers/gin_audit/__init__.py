"""A linter for gin: finds mistakes in a configuration before anything is built."""
