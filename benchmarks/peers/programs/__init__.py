"""The peers' programs, each as its own experts would write it; a process runs one of them, in its environment."""
