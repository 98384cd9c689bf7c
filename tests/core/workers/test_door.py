"""Open connections to a lost worker are broken off from this end."""

import os
import socket

import pytest

from core.workers.door import hang_up


@pytest.mark.parametrize("mapped", [False, True], ids=["version 4", "version 4 by a socket of version 6, as gRPC's"])
def test_connection_to_one_address_is_broken_off_and_no_other(mapped):
    with socket.create_server(("127.0.0.1", 0)) as lost, socket.create_server(("127.0.0.1", 0)) as other:
        for server in (lost, other):
            _, port = server.getsockname()
            ours = socket.socket(socket.AF_INET6 if mapped else socket.AF_INET)
            ours.connect(("::ffff:127.0.0.1" if mapped else "127.0.0.1", port))
            ours.detach()  # nobody in Python knows of it any more
        theirs, others = lost.accept()[0], other.accept()[0]
        with theirs, others, open(__file__):
            before = len(os.listdir("/dev/fd"))
            hang_up(f"localhost:{lost.getsockname()[1]}")
            assert len(os.listdir("/dev/fd")) == before  # copies of what is no connection are closed, too
            assert theirs.recv(1) == b""
            others.settimeout(0.1)
            with pytest.raises(TimeoutError):
                others.recv(1)
