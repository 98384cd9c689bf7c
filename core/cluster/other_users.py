"""Detects other users of this machine, who could reach a worker's port, and asks for consent to open the port.

TensorFlow's server checks no secret, and socket filters can't tell users apart. A firewall can, but needs root.
"""

import contextlib
import os
import pwd
from collections.abc import Mapping
from pathlib import Path

from core.cluster.port_guard import OWNED
from core.errors import ConfigurationError

OPEN_PORTS = (
    "TAPELOOP_OPEN_PORTS"  # in a worker's environment: permits other users. `trainers.launch` handles it itself
)

_FIRST_PERSON = 1000  # lower ids are system accounts (useradd(8))
_NO_LOGIN = ("nologin", "false")  # ends of the shells of service accounts


def people_here() -> list[str]:
    """Returns the account names of other people whose processes on this machine are visible to this process."""
    found = list[str]()
    for uid in sorted(_users() - {0, os.getuid(), os.geteuid()}):
        with contextlib.suppress(KeyError):  # one without a name is in another container
            account = pwd.getpwuid(uid)
            if uid >= _FIRST_PERSON and not account.pw_shell.endswith(_NO_LOGIN):
                found.append(account.pw_name)
    return found


def _users() -> set[int]:
    """Returns the user ids of the owners of all visible processes, including those in containers."""
    found = set[int]()
    with contextlib.suppress(OSError):
        for process in Path("/proc").iterdir():
            if process.name.isdigit():
                with contextlib.suppress(OSError):  # the process has ended
                    found.add(process.stat().st_uid)
    return found


def refuse_people(what: str, remedy: str) -> None:
    """Raises a `ConfigurationError` if other people have processes on this machine. They could reach `what`."""
    if people := people_here():
        raise ConfigurationError(
            f"{what} would be open to other users of this machine ({', '.join(people[:3])} at work now), and {OWNED}. "
            f"{remedy}"
        )


def check_consent(environment: Mapping[str, str] | None = None) -> None:
    """Raises an error if other people use this machine, unless `environment` sets `TAPELOOP_OPEN_PORTS`."""
    if (os.environ if environment is None else environment).get(OPEN_PORTS, "") in ("", "0"):
        refuse_people(
            "this worker's port",
            "On one machine start the workers with `python -m trainers.launch`, which gives them a separate network; "
            "on several, ask for whole machines (Slurm's `--exclusive`). If you trust these users, set "
            f"`{OPEN_PORTS}=1` for each worker.",
        )
