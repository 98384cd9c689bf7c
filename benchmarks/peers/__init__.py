"""Tapeloop's training speed next to its peers': the same model, batches, data and optimizer, in fresh processes."""
