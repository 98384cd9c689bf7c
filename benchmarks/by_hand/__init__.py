"""Hand-written training loops, one per adversarial model: the baselines of `benchmarks.adversarial`."""
