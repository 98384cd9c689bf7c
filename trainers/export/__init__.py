"""Exports a task to files that load without this project; their outputs are first compared with the task's."""
