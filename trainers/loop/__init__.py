"""Parts of the training loop: input, state, recovery, speed."""
