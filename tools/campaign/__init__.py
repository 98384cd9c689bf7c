"""Kills, signals, damages and starves the real command: nothing may be lost or hang."""
