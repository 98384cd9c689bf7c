"""Which way `trainers.launch` closes its workers' ports on this machine, where it allows any."""

import functools

from core.errors import ConfigurationError
from trainers.launch.network import choose_network


@functools.cache
def way() -> str:
    """Returns the line that `launch` prints, or why it refuses."""
    try:
        return choose_network(open_ports=False).line
    except ConfigurationError as error:
        return str(error)


def flags() -> list[str]:
    """Returns what `launch` needs to go on, on a machine that allows no way."""
    return [] if way().startswith("ports: ") else ["--open_ports"]
