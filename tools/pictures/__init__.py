"""Pictures of what the commands of a page show, made by these commands."""
