"""Divides the time of a step among kinds of operations: `python -m benchmarks.profile --work=conv`"""
