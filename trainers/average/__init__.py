"""`python -m trainers.average`: averages of checkpoints, as a run that evaluation and export read."""
