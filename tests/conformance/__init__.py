"""The conformance suite: the same checks for every public part, with at least one row each."""
