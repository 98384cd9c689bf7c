"""`python -m tools.mutants`: plants mistakes in the product code, and counts those that the tests catch."""
