"""A storage server for each test."""

import pytest

from tests.storage_server import serving


@pytest.fixture
def server():
    with serving() as server:
        yield server


@pytest.fixture
def storage(server, monkeypatch):
    """Returns the server; the variables of this process point to it."""
    for name, value in server.variables.items():
        monkeypatch.setenv(name, value)
    return server
