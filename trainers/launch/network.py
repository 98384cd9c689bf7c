"""Protects the workers' ports: a private network namespace, or else guards against other machines.

TensorFlow's server doesn't authenticate, so anyone who reaches its port controls the worker. On Linux a process can run
in a network namespace with only loopback, which no packet enters or leaves. If the kernel refuses this namespace, as in
unprivileged containers, each worker uses the guards of `core.cluster.port_guard`.
"""

import contextlib
import ctypes
import dataclasses
import errno
import fcntl
import os
import socket
import struct
from collections.abc import Callable
from pathlib import Path

from core.cluster.other_users import refuse_people
from core.cluster.port_guard import OWNED, prove_guards
from core.errors import ConfigurationError
from trainers.launch.processes import LIBC

CLONE_NEWUSER, CLONE_NEWNET = 0x1000_0000, 0x4000_0000  # linux/sched.h
_SIOCSIFFLAGS, _IFF_UP = 0x8914, 0x1  # linux/sockios.h, linux/if.h


@dataclasses.dataclass(frozen=True)
class Network:
    """`enter`, a function to call in each worker's new process, and `line`, a text on how the ports are protected."""

    enter: Callable[[], None]
    line: str


def choose_network(*, open_ports: bool) -> Network:
    """Returns the safest protection that works. Raises a `ConfigurationError` if none does, unless `open_ports`."""
    if not open_ports:
        try:
            return Network(loopback_alone(), ALONE)
        except OSError as error:
            refused = error.strerror or str(error)
    try:
        prove_guards()
    except OSError as error:
        if not open_ports:
            raise ConfigurationError(
                f"the workers' ports can't be closed to others: the system refuses a private network ({refused}) and "
                f"guards at the ports ({error.strerror or error}). Anyone who reaches a port controls its worker. Run "
                "on Linux with user namespaces (`sysctl user.max_user_namespaces`); give a container the capability "
                "SYS_ADMIN, or `--network=none`; or give `--open_ports` if a firewall closes them."
            ) from None
        return Network(_stay, f"Warning: the workers' ports are open to all who reach this machine, and {OWNED}.")
    if open_ports:
        return Network(_stay, f"Warning: the workers' ports are open to every user of this machine, and {OWNED}.")
    refuse_people("the workers' ports", f"The system refuses a private network ({refused}). {TRUSTED}")
    return Network(_stay, f"{GUARDED}, as the system refuses a private network ({refused})")


ALONE = (
    "ports: in a private network with only loopback; nothing else reaches the workers, and they reach "
    "nothing else (`--open_ports` gives them this machine's network)"
)
TRUSTED = "If these users are trusted, give `--open_ports`."
GUARDED = "ports: closed to other machines; users of this machine can reach them"


def _stay() -> None:
    """Keeps a worker in this machine's network."""


def loopback_alone() -> Callable[[], None]:
    """Makes a network with only loopback. Returns a function that moves a process into it for good.

    Raises `OSError` if the system refuses. Without permission for a network namespace, it also makes a user namespace.
    """
    try:
        places = _made(CLONE_NEWNET)
    except PermissionError:
        places = _made(CLONE_NEWUSER | CLONE_NEWNET)

    def enter() -> None:
        for place in places:
            _call("setns", place, 0)

    if code := _in_a_fork(enter):
        raise OSError(code, os.strerror(code))
    return enter


def _made(kinds: int) -> list[int]:
    """Returns open files of new namespaces, which a forked process makes. The caller's namespaces don't change."""
    ready, done = os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(done[1])
        os.write(ready[1], bytes([_errno_of(lambda: _unshare(kinds))]))
        os.read(done[0], 1)  # until the parent has opened the files
        os._exit(0)
    try:
        os.close(ready[1])  # leaves only the child's end, so that its death closes the pipe
        said = os.read(ready[0], 1)
        if said != b"\0":
            code = said[0] if said else errno.EINTR
            raise OSError(code, os.strerror(code))
        if kinds & CLONE_NEWUSER:
            _map_users(pid)
        names = ["user", "net"] if kinds & CLONE_NEWUSER else ["net"]
        return [os.open(f"/proc/{pid}/ns/{name}", os.O_RDONLY) for name in names]
    finally:
        for end in (ready[0], *done):
            os.close(end)
        os.waitpid(pid, 0)


def _unshare(kinds: int) -> None:
    _call("unshare", kinds)
    with socket.socket() as any_socket:
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sh22x", b"lo", _IFF_UP))


def _map_users(pid: int) -> None:
    """Maps as many users as possible to themselves, so that files keep their owners."""
    home = Path(f"/proc/{pid}")
    if os.geteuid() == 0:
        for name in ("uid_map", "gid_map"):
            ranges = [line.split() for line in Path(f"/proc/self/{name}").read_text().splitlines()]
            (home / name).write_text("".join(f"{inside} {inside} {count}\n" for inside, _, count in ranges))
    else:  # without root, only the own user can be mapped, and groups must be fixed
        (home / "setgroups").write_text("deny")
        (home / "uid_map").write_text(f"{os.geteuid()} {os.geteuid()} 1\n")
        (home / "gid_map").write_text(f"{os.getegid()} {os.getegid()} 1\n")


def _in_a_fork(call: Callable[[], None]) -> int:
    """Runs `call` in a forked process. Returns the errno of a failed call, or 0."""
    pid = os.fork()
    if pid == 0:
        os._exit(_errno_of(call))
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _errno_of(call: Callable[[], None]) -> int:
    """Returns 0, or the errno of a failed `call`; never raises, as a forked process must not run the caller's code."""
    with contextlib.suppress(BaseException):
        try:
            call()
            return 0
        except OSError as error:
            return error.errno or 255
    return 255


def _call(name: str, *arguments: int) -> None:
    """Calls the C library's `name` (`setns`, `unshare`), which Python lacks before 3.12; may raise `OSError`."""
    if LIBC is None:
        raise OSError(38, "not on Linux")
    if getattr(LIBC, name)(*arguments) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
