"""Port protection that `trainers.launch` can use on this machine."""

import functools

from core.errors import ConfigurationError
from trainers.launch.network import choose_network


@functools.cache
def way() -> str:
    """Returns the line that `launch` prints, or its reason to refuse."""
    try:
        return choose_network(open_ports=False).line
    except ConfigurationError as error:
        return str(error)


def flags() -> list[str]:
    """Returns the flags that let `launch` run on a machine without port protection."""
    return [] if way().startswith("ports: ") else ["--open_ports"]
