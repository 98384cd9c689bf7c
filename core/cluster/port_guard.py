"""Port guards: a worker's port is open only at the addresses that the cluster names.

TensorFlow's server has no authentication: anyone who reaches its port can run code as this process's user. It listens
at all addresses of the machine, whatever `TF_CONFIG` says. But the kernel prefers a listener at one specific address.
So a guard listens at each other address first, and its filter drops every packet. Guards need no privileges. TensorFlow
only has to share its port with sockets of the same user.
"""

import contextlib
import ctypes
import errno
import ipaddress
import os
import select
import socket
import struct
from collections.abc import Iterable, Sequence

from core.cluster.addresses import Address, at, host_and_port, is_private, local_addresses, named_here
from core.cluster.topology import Cluster
from core.errors import ConfigurationError

OWNED = "whoever reaches one owns its worker, as TensorFlow asks nobody who they are"
PROOF_SECONDS = 0.1  # a connection within the machine takes microseconds, if it succeeds

_IP_FREEBIND = 15  # linux/in.h: an address that is just appearing or disappearing is no error
_SO_ATTACH_FILTER = 26  # asm-generic/socket.h


def fence(cluster: Cluster) -> list[socket.socket]:
    """Blocks this worker's port at all addresses that the cluster doesn't name, before TensorFlow opens the port.

    Returns the guards' sockets. The guards work until these are closed. If this worker's addresses are unknown, nothing
    is blocked. If the port stays open to the internet, or at more addresses than `TF_CONFIG` names, it warns.
    """
    _, port = host_and_port(cluster.address)
    named, guards, why = named_here(cluster), [], ""
    try:
        here = local_addresses()
        if named:
            loopback = any(address.is_loopback for address in named)
            others = [x for x in here if x not in named and not (loopback and x.is_loopback)]
            if others:
                prove_guards()
                _refuse_taken(port, cluster)
                guards = guarded(port, others)
                os.environ["TF_GRPC_REUSE_PORT"] = "1"
    except OSError as error:
        here, named, why = [], [], f" ({error.strerror or error})"
    if why:
        _warn(f"this worker's port, {port}, is open at all addresses of this machine{why}, and {OWNED}")
    elif public := [str(address) for address in named or here if not is_private(address)]:
        _warn(f"this worker's port, {port}, is open at {', '.join(public)}, which isn't private, and {OWNED}")
    return guards


def _warn(what: str) -> None:
    print(f"Warning: {what}: let only the workers' machines reach it (see docs/many-machines.md).", flush=True)


def guarded(port: int, addresses: Iterable[Address]) -> list[socket.socket]:
    """Returns guards: sockets that keep connections to `addresses` from listeners at all addresses."""
    with contextlib.ExitStack() as stack:
        guards = []
        for address in addresses:
            family, place = at(address, port)
            guard = stack.enter_context(_sharing(family))
            guard.setsockopt(socket.IPPROTO_IP, _IP_FREEBIND, 1)
            guard.bind(place)
            _let_nothing_through(guard)
            guard.listen(0)
            guards.append(guard)
        stack.pop_all()
        return guards


def prove_guards() -> None:
    """Tests that guards block a listener at guarded addresses, and only there. Raises an `OSError` otherwise."""
    everywhere = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(_sharing(everywhere, both=True))
        listener.bind(("", 0))
        listener.listen()
        port = listener.getsockname()[1]
        loopback, *others = map(ipaddress.ip_address, ("127.0.0.1", "127.0.0.2"))
        others += [address for address in local_addresses() if not address.is_loopback]
        for guard in guarded(port, others):
            stack.enter_context(guard)
        if not _is_reached([loopback], port):
            raise OSError("the system doesn't let sockets share a port")
        if _is_reached(others, port):
            raise OSError("the system lets connections pass by a guard")


def _is_reached(addresses: Sequence[Address], port: int) -> bool:
    """Says whether a connection to `port` succeeds at any of `addresses`."""
    with contextlib.ExitStack() as stack:
        knocks, answered = {}, select.poll()
        for address in addresses:
            family, place = at(address, port)
            knock = stack.enter_context(socket.socket(family))
            knock.setblocking(False)
            knock.connect_ex(place)
            answered.register(knock, select.POLLOUT)
            knocks[knock.fileno()] = knock
        found = [knocks[number] for number, _ in answered.poll(1000.0 * PROOF_SECONDS)]
        return any(knock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0 for knock in found)


def _refuse_taken(port: int, cluster: Cluster) -> None:
    """Raises an error if another process listens at `port`. TensorFlow doesn't notice this for shared ports."""
    dual = socket.has_dualstack_ipv6()
    try:
        with socket.create_server(("", port), family=socket.AF_INET6 if dual else socket.AF_INET, dualstack_ipv6=dual):
            pass
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        raise ConfigurationError(
            f"{cluster.name(cluster.index)} can't listen at port {port}: another process has it. End that, or choose "
            "another port in `TF_CONFIG.cluster`."
        ) from None


def _sharing(family: socket.AddressFamily, *, both: bool = False) -> socket.socket:
    """Returns a socket whose port other sockets of this user may share. With `both`, IPv6 also accepts IPv4."""
    made = socket.socket(family)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    if family == socket.AF_INET6:
        made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, not both)
    return made


def _let_nothing_through(guard: socket.socket) -> None:
    """Drops each packet that arrives at `guard`. Otherwise clients would connect, and wait for an answer in vain."""
    program = ctypes.create_string_buffer(struct.pack("=HBBI", 0x06, 0, 0, 0), 8)  # "return 0": keep no byte of it
    guard.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, struct.pack("@HP", 1, ctypes.addressof(program)))
