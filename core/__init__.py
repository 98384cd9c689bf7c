"""Building blocks of an experiment: modules, random numbers, layers, losses, optimizers, data and checkpoints."""

__version__ = "0.3.0"  # of Tapeloop, models and trainers included; pyproject.toml reads it here
