"""What a step takes on n replicas, by a model small enough to read; `docs/scaling-model.md` shows what it says."""
