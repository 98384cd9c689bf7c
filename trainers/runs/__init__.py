"""Runs beside each other, read from their folders: their states, figures, curves, and what differs between them."""
