"""Tries settings that change no number, one after the other, and keeps those that are faster on this machine."""
