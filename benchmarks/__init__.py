"""The project's speed claims, as commands that run it side by side with its peers."""
