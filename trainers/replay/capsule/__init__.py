"""What a step that isn't finite leaves behind, and how it is done again under watch: docs/troubleshooting.md."""
