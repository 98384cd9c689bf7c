"""Programs of the peers, each as its own experts would write it; a process runs one of them, in its own environment."""
