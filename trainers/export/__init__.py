"""Exports a task to files that load without this project. They are compared with the task before they are renamed."""
