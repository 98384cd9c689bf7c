"""Runs the commands of a page and draws their output."""
