"""Measures the parts of a step, names the bottleneck, and tries remedies."""
