"""Checks kernels, replicas and resuming on the machine at hand."""
