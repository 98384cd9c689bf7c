"""Estimates a training step from shapes alone: operations, memory, communication and time; fits it into memory."""
