"""Does a change to the code change a number? Every configuration, trained at two revisions, bit for bit."""
