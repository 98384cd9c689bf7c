"""Adversarial training written straight down, for one model each: the loops that ours are measured against."""
