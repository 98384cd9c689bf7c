"""Compares image classifiers of PyTorch's libraries with Tapeloop's, which read and write their weights."""
