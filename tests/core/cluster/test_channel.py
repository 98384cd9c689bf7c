"""Channels carry messages over a connection; this end can break off one to a lost worker."""

import fcntl
import os
import resource
import socket

import pytest

from core.cluster.channel import Channel
from core.cluster.port_check import hang_up

LATER = 1100  # a high file number, as in a process with many files; `select.select` handles numbers up to 1,023


@pytest.fixture
def many_files():
    """Raises this process's limit of files to the system's maximum."""
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


@pytest.mark.parametrize("mapped", [False, True], ids=["version 4", "version 4 by a socket of version 6, as gRPC's"])
def test_connection_to_one_address_is_broken_off_and_no_other(mapped):
    with socket.create_server(("127.0.0.1", 0)) as lost, socket.create_server(("127.0.0.1", 0)) as other:
        for server in (lost, other):
            _, port = server.getsockname()
            ours = socket.socket(socket.AF_INET6 if mapped else socket.AF_INET)
            ours.connect(("::ffff:127.0.0.1" if mapped else "127.0.0.1", port))
            ours.detach()  # no longer referenced in Python
        theirs, others = lost.accept()[0], other.accept()[0]
        with theirs, others, open(__file__):
            before = len(os.listdir("/dev/fd"))
            hang_up(f"localhost:{lost.getsockname()[1]}")
            assert len(os.listdir("/dev/fd")) == before  # copies of a closed connection are closed, too
            assert theirs.recv(1) == b""
            others.settimeout(0.1)
            with pytest.raises(TimeoutError):
                others.recv(1)
