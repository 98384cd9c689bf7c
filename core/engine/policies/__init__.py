"""Policies for bad steps: measures updates, detects spikes, skips bad steps, and undoes half-written ones."""
