"""Development commands that aren't tests: campaigns, peers, qualities, pictures, mutants."""
