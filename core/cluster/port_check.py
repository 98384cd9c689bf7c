"""Opens this process's port before TensorFlow's server does. Connects to the ports of other processes."""

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
    """Returns a connection to the listener at `address`, "host:port". Without a listener, raises an `OSError`."""
    connection = socket.create_connection(host_and_port(address), timeout=ANSWER_SECONDS)
    if connection.getsockname() == connection.getpeername():
        # Without a listener, a connection to a port in the ephemeral range may connect to itself.
        connection.close()
        raise OSError("nobody listens there")
    return connection


def hang_up(address: str) -> None:
    """Closes all connections of this process to `address`, including TensorFlow's.

    TensorFlow would wait forever for a stopped process, and for minutes for a machine that is gone.
    """
    places = {(place, host_and_port(address)[1]) for place in resolved(address)}
    for name in os.listdir("/dev/fd"):
        with contextlib.suppress(OSError, ValueError):  # it has been closed by now, or isn't a connection
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
    """Opens this process's port at the addresses that the cluster names. If none is known, opens it at all."""
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
    """Listens at all `places`. (`create_server` lets others use the port while connections stay open.)"""
    with contextlib.ExitStack() as stack:
        opened = [
            stack.enter_context(socket.create_server(place, family=family, backlog=backlog, dualstack_ipv6=dual))
            for family, place in places
        ]
        stack.pop_all()
        return opened
