"""A small model of the time of a step on n replicas; `benchmarks/notes/scaling.md` shows its results."""
