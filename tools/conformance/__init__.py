"""Compares each public part with its peer and writes `docs/parts.md`."""
