"""Compares a GPT-2 of `transformers` with Tapeloop's, which loads its weights."""
