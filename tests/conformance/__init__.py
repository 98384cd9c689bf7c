"""The conformance battery: every public part, one row each or more, through the same checks."""
