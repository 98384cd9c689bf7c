"""Finds IP addresses: those of this machine, those that the cluster names, and private ones."""

import contextlib
import ipaddress
import socket
import struct
from collections.abc import Iterator, Sequence

from core.cluster.topology import Cluster

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

_ONE_LINK = ipaddress.ip_network("fe80::/10")
_PRIVATE = [
    ipaddress.ip_network(text)
    for text in (
        *("127.0.0.0/8", "::1/128"),  # this machine
        *("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7"),  # RFC 1918, RFC 4193
        *("169.254.0.0/16", str(_ONE_LINK)),  # one link
        "100.64.0.0/10",  # behind a carrier's translation, RFC 6598
    )
]


def is_private(address: Address) -> bool:
    """Says whether `address` is private: loopback, link-local, or in a network that the internet doesn't route."""
    return any(address in network for network in _PRIVATE)


def host_and_port(address: str) -> tuple[str, int]:
    """Splits "host:port" into `(host, port)`; the host may be an IPv6 address in brackets."""
    host, _, port = address.rpartition(":")
    return host.removeprefix("[").removesuffix("]"), int(port)


def at(address: Address, port: int) -> tuple[socket.AddressFamily, tuple[str, int]]:
    """Returns the family and address for a socket. Addresses such as `fe80::1%2` include a scope id."""
    flags = socket.AI_NUMERICHOST | socket.AI_NUMERICSERV
    family, _, _, _, place = socket.getaddrinfo(str(address), port, type=socket.SOCK_STREAM, flags=flags)[0]
    return family, place  # type: ignore[return-value]


def named_here(cluster: Cluster) -> list[Address]:
    """Returns the addresses of this machine to which its host name in the cluster resolves; empty if unknown.

    They are unknown if the name resolves to another machine, such as a gateway. They are also unknown if it resolves
    only to loopback while other workers are remote: many machines resolve their own name to 127.0.1.1.
    """
    found = [address for address in resolved(cluster.address) if _is_here(address)]
    only_loopback = all(address.is_loopback for address in found)
    return [] if only_loopback and not is_on_loopback(cluster.workers) else found


def is_on_loopback(workers: Sequence[str]) -> bool:
    """Says whether all `workers` ("host:port") resolve to loopback addresses."""
    hosts = sorted({f"{worker.rpartition(':')[0]}:0" for worker in workers})
    # Stops at the first other one: a large cluster's names may take long to resolve.
    return all(all(address.is_loopback for address in found) if (found := resolved(host)) else False for host in hosts)


def resolved(worker: str) -> list[Address]:
    """Returns the addresses of the host of `worker`, "host:port", as this machine resolves it; empty on failure."""
    host, port = host_and_port(worker)
    found: dict[Address, None] = {}
    with contextlib.suppress(OSError, UnicodeError):  # some machines can't resolve their own name
        for *_, place in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
            text, link = str(place[0]).partition("%")[0], [int(each) for each in place[3:]]
            found[ipaddress.ip_address(f"{text}%{link[0]}" if any(link) else text)] = None
    return list(found)


def _is_here(address: Address) -> bool:
    if address.is_unspecified:  # this means all addresses, so none is known
        return False
    with contextlib.suppress(OSError):
        family, place = at(address, 0)
        with socket.socket(family) as trial:
            trial.bind(place)
            return True
    return False


def local_addresses() -> list[Address]:
    """Returns every address of this machine, from the kernel. Outside Linux, it raises an `OSError`."""
    if not hasattr(socket, "AF_NETLINK"):
        raise OSError("the system has no netlink to ask for this machine's addresses")
    found: list[Address] = []
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as kernel:
        kernel.send(struct.pack("=IHHIIBBBBI", 24, _GET_ADDRESSES, _REQUEST | _DUMP, 1, 0, 0, 0, 0, 0, 0))
        while True:
            for kind, content in _parts(kernel.recv(1 << 16), "=IH10x"):
                if kind == _DONE:
                    return found
                if kind == _ERROR:
                    raise OSError(
                        -struct.unpack_from("=i", content)[0], "the kernel doesn't tell this machine's addresses"
                    )
                (link,) = struct.unpack_from("=I", content, 4)
                told = dict(_parts(content[8:], "=HH"))
                # If the two differ, `_ADDRESS` is the other end's.
                address = ipaddress.ip_address(told.get(_LOCAL, told[_ADDRESS]))
                found.append(ipaddress.ip_address(f"{address}%{link}") if address in _ONE_LINK else address)


_GET_ADDRESSES, _DONE, _ERROR = 22, 3, 2  # kinds of messages (linux/rtnetlink.h, linux/netlink.h)
_REQUEST, _DUMP = 0x1, 0x300
_ADDRESS, _LOCAL = 1, 2  # attributes (linux/if_addr.h)


def _parts(content: bytes, head: str) -> Iterator[tuple[int, bytes]]:
    """Yields `(type, content)` of each part of a netlink message. `head` is the format of a part's length and type."""
    size = struct.calcsize(head)
    while len(content) >= size:
        length, kind = struct.unpack_from(head, content)
        yield kind, content[size:length]
        content = content[(length + 3) & ~3 :]
