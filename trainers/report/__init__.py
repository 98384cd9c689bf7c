"""One page about some runs, in one file of HTML that asks for nothing from a network."""
