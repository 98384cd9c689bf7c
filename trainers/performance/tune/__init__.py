"""Tries settings that don't change results, one after the other, and keeps those that are faster on this machine."""
