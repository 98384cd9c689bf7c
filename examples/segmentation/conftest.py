"""Gives the tests four virtual CPU devices, which act as replicas."""

pytest_plugins = ["core.testing.pytest_plugin"]
