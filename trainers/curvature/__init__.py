"""Curvature of the loss at a checkpoint: `python -m trainers.curvature runs/a`."""
