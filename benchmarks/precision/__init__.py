"""Training in bfloat16: its speed next to float32's and next to peers, and the losses that it reaches."""
