"""Checks that results don't depend on the number of replicas or microbatches."""
