"""One architecture a file: its networks, then the task that trains them."""
