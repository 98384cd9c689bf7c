"""A small model of step time on n devices; `benchmarks/notes/scaling.md` shows its results."""
