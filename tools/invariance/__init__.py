"""Checks that no configuration's results depend on the number of replicas or microbatches."""
