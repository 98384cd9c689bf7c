"""Kills, signals, damage, full disks and nonsense against the real command: nothing may be lost, nothing may hang."""
