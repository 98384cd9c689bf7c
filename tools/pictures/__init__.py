"""Runs the commands of a page and makes its pictures of what they show."""
