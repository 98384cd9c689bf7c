"""Compares language models of `transformers` with Tapeloop's, in both directions."""
