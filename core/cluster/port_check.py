"""The port that the cluster gives to a process: opened, and knocked at, before TensorFlow's server takes it over."""

import contextlib
import errno
import ipaddress
import os
import socket
import stat
import time
from collections.abc import Sequence
from typing import Any

from core.cluster.addresses import Address, at, host_and_port, named_here, resolved
from core.cluster.channel import ANSWER_SECONDS, POLL_SECONDS
from core.cluster.topology import Cluster

FREEING_SECONDS = 2.0  # in which a process that is just ending frees its port


def knock(address: str) -> socket.socket:
    """Connects to who listens at an address."""
    connection = socket.create_connection(host_and_port(address), timeout=ANSWER_SECONDS)
    if connection.getsockname() == connection.getpeername():
        # Where nobody listens at a port that the system may give to this very connection, it can be its own other end.
        connection.close()
        raise OSError("nobody listens there")
    return connection


def hang_up(address: str) -> None:
    """Breaks off all that this process has open to this address, whoever in it opened it.

    TensorFlow waits without end for an answer of a process that stands still, and for minutes if its machine is gone.
    """
    places = {(place, host_and_port(address)[1]) for place in resolved(address)}
    for name in os.listdir("/dev/fd"):
        with contextlib.suppress(OSError, ValueError):  # it has been closed by now, or is no connection
            if not stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                continue  # `fromfd` would leave a copy of it open
            with socket.fromfd(int(name), socket.AF_INET6, socket.SOCK_STREAM) as connection:
                if _other_end(connection) in places:
                    connection.shutdown(socket.SHUT_RDWR)


def _other_end(connection: socket.socket) -> tuple[Address, int]:
    text, port = connection.getpeername()[:2]
    place = ipaddress.ip_address(text)
    return getattr(place, "ipv4_mapped", None) or place, port


def opened(cluster: Cluster, *, backlog: int) -> list[socket.socket]:
    """Opens this process's port where the cluster names it, or everywhere if that isn't known."""
    _, port = host_and_port(cluster.address)
    places = [at(address, port) for address in named_here(cluster)]
    dual = not places and socket.has_dualstack_ipv6()
    places = places or [(socket.AF_INET6 if dual else socket.AF_INET, ("", port))]
    until = time.monotonic() + FREEING_SECONDS
    while True:
        try:
            return _opened(places, backlog=backlog, dual=dual)
        except OSError as error:
            if error.errno != errno.EADDRINUSE or time.monotonic() > until:
                raise
        time.sleep(POLL_SECONDS)


def _opened(places: Sequence[tuple[socket.AddressFamily, Any]], *, backlog: int, dual: bool) -> list[socket.socket]:
    """Listens at all these places. `create_server` lets them be taken again while connections made here stay open."""
    with contextlib.ExitStack() as stack:
        opened = [
            stack.enter_context(socket.create_server(place, family=family, backlog=backlog, dualstack_ipv6=dual))
            for family, place in places
        ]
        stack.pop_all()
        return opened
