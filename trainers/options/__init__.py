"""Values of `Trainer.*` and `Experiment.*`: checks, and conversion for the loop."""
