"""Compares ResNets of `torchvision` with Tapeloop's, which read and write their weights."""
