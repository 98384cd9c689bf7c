"""Commands that measure the project's speed claims, next to its peers."""
