"""Strategies other than synchronous replicas with whole copies: meshes, parameter servers, local steps.

Each strategy is a folder that registers its `Backend`. A custom strategy needs only one such file.
"""
