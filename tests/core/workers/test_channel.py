"""Channels carry messages between two ends of a connection."""

import fcntl
import resource
import socket

import pytest

from core.workers.channel import Channel

LATER = 1100  # a number that a file has in a process of many; `select.select` knows numbers up to 1,023


@pytest.fixture
def many_files():
    """Allows this process as many files as the system lets it have."""
    few, many = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (many, many))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (few, many))


def test_messages_come_in_a_process_of_many_files(many_files):
    one, other = socket.socketpair()
    with one, other:
        late = socket.socket(fileno=fcntl.fcntl(other.fileno(), fcntl.F_DUPFD, LATER))
        here, there = Channel(one), Channel(late)
        there.wait(0.01)
        assert list(there.messages()) == []
        here.send({"step": 3})
        there.wait(60.0)
        assert list(there.messages()) == [{"step": 3}]
        there.close()
