"""What any experiment is built from: modules, random numbers, layers, losses, optimizers, data, checkpoints."""
