"""A run's task as files that others load without this project: written, compared in a fresh process, put in place."""
