"""Strategies whose replicas don't hold whole, synchronous copies: meshes, parameter servers, local steps.

Each has a folder, which registers its backend. A custom strategy needs only one such file.
"""
