"""A worker's port is open at the addresses that the cluster names, and closed elsewhere."""

import contextlib
import ipaddress
import socket
import subprocess
import sys

import pytest

from core.cluster import addresses, port_guard
from core.cluster.addresses import is_private, local_addresses, named_here
from core.cluster.topology import Cluster
from core.errors import ConfigurationError
from tests.commands import CHECKOUT


def of(*texts):
    return [ipaddress.ip_address(text) for text in texts]


@pytest.fixture
def guards_work():
    """Tells whether this machine allows port guards; if not, the test prints the reason."""
    try:
        port_guard.prove_guards()
    except OSError as error:
        print(f"no guards on this machine: {error}")
        return False
    return True


def listening_as_tensorflow_does(port=0):
    dual = socket.has_dualstack_ipv6()
    listener = socket.socket(socket.AF_INET6 if dual else socket.AF_INET)
    for option in (socket.SO_REUSEADDR, socket.SO_REUSEPORT):
        listener.setsockopt(socket.SOL_SOCKET, option, 1)
    if dual:
        listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    listener.bind(("", port))
    listener.listen()
    return listener


def is_reached(address, port):
    family, place = addresses.at(address, port)
    with socket.socket(family) as knock:
        knock.settimeout(0.2)
        return knock.connect_ex(place) == 0


def test_a_guarded_port_is_reached_where_the_cluster_names_it_and_nowhere_else(guards_work, monkeypatch):
    with listening_as_tensorflow_does() as trial:
        number = trial.getsockname()[1]
    others = [address for address in local_addresses() if not address.is_loopback]
    print(f"from other addresses of this machine: {', '.join(map(str, others)) or 'none, it has but loopback'}")
    monkeypatch.setenv("TF_GRPC_REUSE_PORT", "0")  # which the test restores at its end
    with contextlib.ExitStack() as stack:
        for guard in port_guard.fence(Cluster((f"127.0.0.1:{number}",), 0)):
            stack.enter_context(guard)
        stack.enter_context(listening_as_tensorflow_does(number))
        assert is_reached(of("127.0.0.1")[0], number)
        if guards_work:
            assert not any(is_reached(address, number) for address in others)


def test_guards_are_proven_to_hold_and_no_guard_to_hold_nothing(guards_work, monkeypatch):
    monkeypatch.setattr(port_guard, "guarded", lambda port, addresses: [])
    if guards_work:
        with pytest.raises(OSError, match="pass by a guard"):
            port_guard.prove_guards()


def test_ports_that_can_t_be_shared_have_no_guards():
    code = "from core.cluster.port_guard import prove_guards; prove_guards()"
    command = [sys.executable, "-m", "tests.refusing", "guards", "--", sys.executable, "-c", code]
    done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, timeout=60, check=False)
    assert "PermissionError" in done.stderr


def test_a_port_that_another_process_has_is_refused(guards_work):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        if guards_work and any(not address.is_loopback for address in local_addresses()):
            with pytest.raises(ConfigurationError, match=rf"can't listen at port {port}: another process has it"):
                port_guard.fence(Cluster((f"127.0.0.1:{port}",), 0))


# --- where a cluster names a worker -----------------------------------------------------------------------------------

NAMES = {
    "one": ["127.0.1.1"],
    "both": ["127.0.1.1", "127.0.0.3"],
    "gate": ["8.8.8.8"],
    "nobody": [],
    "far": ["8.8.4.4"],
}


@pytest.mark.parametrize(
    ("workers", "found"),
    [
        (["127.0.0.1:1"], ["127.0.0.1"]),
        (["both:1"], ["127.0.1.1", "127.0.0.3"]),
        (["one:1", "one:2"], ["127.0.1.1"]),
        (["one:1", "far:2"], []),  # a machine that resolves its own name to loopback, which others don't
        (["one:1", "nobody:2"], []),
        (["gate:1", "far:2"], []),
        (["nobody:1"], []),
        (["0.0.0.0:1"], []),
        (["[::]:1"], []),
    ],
)
def test_where_a_worker_is_named_on_this_machine(workers, found, monkeypatch):
    real = socket.getaddrinfo

    def resolved(host, *arguments, **flags):
        if host not in NAMES:
            return real(host, *arguments, **flags)
        return [answer for text in NAMES[host] for answer in real(text, *arguments, **flags)]

    monkeypatch.setattr(socket, "getaddrinfo", resolved)
    assert named_here(Cluster(tuple(workers), 0)) == of(*found)


def test_the_kernel_names_every_address_at_which_this_machine_can_be_bound():
    found = local_addresses()
    assert of("127.0.0.1")[0] in found
    for address in found:
        family, place = addresses.at(address, 0)
        with socket.socket(family) as trial:
            trial.bind(place)


# --- warnings ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("address", "private"),
    [
        *[(each, True) for each in ("127.0.0.1", "10.1.2.3", "172.31.0.1", "192.168.1.1", "169.254.1.1", "100.64.0.1")],
        *[(each, True) for each in ("::1", "fd00::1", "fe80::1", "fe80::1%3")],
        *[(each, False) for each in ("8.8.8.8", "172.32.0.1", "192.0.2.2", "100.128.0.1", "2001:db8::1", "2600::1")],
    ],
)
def test_private_is_what_the_internet_does_not_carry(address, private):
    assert is_private(*of(address)) == private


@pytest.mark.parametrize(
    ("named", "here", "warns"),
    [
        (["127.0.0.1"], ["127.0.0.1"], []),
        (["10.0.0.1"], ["10.0.0.1"], []),
        (["8.8.8.8"], ["8.8.8.8"], ["is open at 8.8.8.8, which isn't private"]),
        ([], ["127.0.0.1", "10.0.0.1"], []),
        ([], ["127.0.0.1", "10.0.0.1", "2600::1"], ["is open at 2600::1, which isn't private"]),
    ],
)
def test_an_address_that_is_not_private_is_warned_of_once(named, here, warns, monkeypatch, capsys):
    monkeypatch.setattr(port_guard, "named_here", lambda cluster: of(*named))
    monkeypatch.setattr(port_guard, "local_addresses", lambda: of(*here))
    assert port_guard.fence(Cluster(("a:2222", "b:2222"), 0)) == []
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(warns)
    for line, text in zip(lines, warns, strict=True):
        assert line.startswith("Warning: this worker's port, 2222, ")
        assert text in line


def test_a_port_that_cannot_be_guarded_is_warned_of(monkeypatch, capsys):
    def refused():
        raise OSError(1, "Operation not permitted")

    monkeypatch.setattr(port_guard, "named_here", lambda cluster: of("127.0.0.1"))
    monkeypatch.setattr(port_guard, "local_addresses", lambda: of("127.0.0.1", "10.0.0.1"))
    monkeypatch.setattr(port_guard, "prove_guards", refused)
    assert port_guard.fence(Cluster(("127.0.0.1:2222",), 0)) == []
    assert "is open at all addresses of this machine (Operation not permitted)" in capsys.readouterr().out
