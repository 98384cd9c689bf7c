"""Other users of this machine, to whom a worker's port is open: with them there it takes consent to open it.

TensorFlow's server has no secret to ask for, and the kernel's filters don't know of users. A firewall that does takes
the rights of root.
"""

import contextlib
import os
import pwd
from collections.abc import Mapping
from pathlib import Path

from core.cluster.port_guard import OWNED
from core.errors import ConfigurationError

OPEN_PORTS = (
    "TAPELOOP_OPEN_PORTS"  # in the environment of a worker: others may be here. `trainers.launch` has seen to it
)

_FIRST_PERSON = 1000  # below are the system's own accounts (useradd(8))
_NO_LOGIN = ("nologin", "false")  # ends of the shells of accounts that services have


def people_here() -> list[str]:
    """Names the other people of whom processes run on this machine, as far as this process sees them."""
    found = list[str]()
    for uid in sorted(_users() - {0, os.getuid(), os.geteuid()}):
        with contextlib.suppress(KeyError):  # one without a name is another container's
            account = pwd.getpwuid(uid)
            if uid >= _FIRST_PERSON and not account.pw_shell.endswith(_NO_LOGIN):
                found.append(account.pw_name)
    return found


def _users() -> set[int]:
    """Returns whose the processes are, here and in the containers of this machine; nobody's where nothing says it."""
    found = set[int]()
    with contextlib.suppress(OSError):
        for process in Path("/proc").iterdir():
            if process.name.isdigit():
                with contextlib.suppress(OSError):  # it has ended
                    found.add(process.stat().st_uid)
    return found


def refuse_people(what: str, remedy: str) -> None:
    """Refuses to open `what` where other people are at work, who would reach it."""
    if people := people_here():
        raise ConfigurationError(
            f"{what} would be open to other users of this machine ({', '.join(people[:3])} at work now), and {OWNED}. "
            f"{remedy}"
        )


def check_consent(environment: Mapping[str, str] | None = None) -> None:
    """Refuses to be a worker where other people are at work, unless its environment says that they may be there."""
    if (os.environ if environment is None else environment).get(OPEN_PORTS, "") in ("", "0"):
        refuse_people(
            "this worker's port",
            "On one machine start the workers by `python -m trainers.launch`, which gives them a network of their own; "
            "on several, ask for whole machines (Slurm's `--exclusive`). Where these users are to be trusted, set "
            f"`{OPEN_PORTS}=1` for each worker.",
        )
