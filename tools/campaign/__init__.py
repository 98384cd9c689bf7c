"""Kills, signals, damages and starves the real command: nothing may be lost, nothing may hang."""
