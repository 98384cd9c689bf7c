"""Policies for bad steps: measuring, skipping, rolling back."""
