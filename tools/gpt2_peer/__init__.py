"""Compares a GPT-2 of `transformers` with ours, which takes its weights."""
