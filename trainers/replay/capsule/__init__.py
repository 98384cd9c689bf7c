"""Failure snapshots (capsules) of steps that aren't finite, and their replay: docs/troubleshooting.md."""
