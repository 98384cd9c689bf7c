"""Commands for those who work on this tree: campaigns, peers, qualities, pictures; none is a test."""
