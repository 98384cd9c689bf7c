"""Strategies that run a step otherwise than on whole copies: meshes, parameter servers, local steps.

Each has a folder, in which its backend is registered. A strategy of one's own needs no more than one file like that.
"""
