"""`python -m trainers.launch`: a cluster of workers on one machine."""
