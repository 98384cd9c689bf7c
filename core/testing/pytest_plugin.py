"""A pytest plugin that makes four virtual CPU devices, so that tests can run on several replicas.

In your project's `conftest.py`: `pytest_plugins = ["core.testing.pytest_plugin"]`. The plugin makes the devices before
the first test module is imported, because TensorFlow can't add devices after it has started.
"""

import os

import pytest

DEVICES = 4


def pytest_configure(config: pytest.Config) -> None:
    """Makes the virtual devices, in each process that runs tests."""
    distributes = getattr(config.option, "numprocesses", None) and not hasattr(config, "workerinput")
    os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")  # the processes of pytest-xdist share a GPU
    if not distributes:
        from core.distribution.virtual_devices import make_virtual_cpus

        make_virtual_cpus(DEVICES)


@pytest.fixture(scope="session")
def virtual_devices() -> list[str]:
    """Returns the names of the virtual devices, `["CPU:0", ...]`, for strategies."""
    return [f"CPU:{i}" for i in range(DEVICES)]
