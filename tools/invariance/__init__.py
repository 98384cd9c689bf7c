"""Do the numbers of what ships depend on the number of replicas or microbatches? `python -m tools.invariance` asks."""
