"""The values of `Trainer.*` and `Experiment.*`: checked, and in the form that the loop takes."""
