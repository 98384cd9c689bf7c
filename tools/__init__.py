"""Development commands outside the tests: fault campaigns, peers, quality, pictures, mutants."""
