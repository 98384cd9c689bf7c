"""Policies for bad steps: measures updates, detects spikes, skips steps, and undoes half-written ones."""
