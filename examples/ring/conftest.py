"""Gives the tests four virtual CPU devices, which stand for replicas."""

pytest_plugins = ["core.testing.pytest_plugin"]
