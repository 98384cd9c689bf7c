"""Strategies other than synchronous replicas that hold whole copies: meshes, parameter servers, local steps.

Each strategy has a folder, which registers the strategy's `Backend`. A custom strategy needs only one such file.
"""
