"""A GPT-2 of `transformers`, and ours with its weights."""
