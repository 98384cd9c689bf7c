"""A server process's link to the chief. The process waits for the chief, reports that it is up, and waits for the end.

TensorFlow's server doesn't notice that the chief has finished or was killed. So the chief connects to each server's
port before TensorFlow opens the port, and keeps the connection. A message on it, or its end, ends the server process.
"""

import contextlib
import errno
import os
import time
from collections.abc import Callable, Mapping
from typing import Any

from core.cluster.admission import STRANGERS, Guests
from core.cluster.channel import ANSWER_SECONDS, POLL_SECONDS, Channel
from core.cluster.heartbeat import SILENT_SECONDS, LineLostError, heard
from core.cluster.port_check import opened
from core.cluster.topology import ServedCluster
from core.errors import ConfigurationError, PeerLostError

AGAIN = (
    "Start all processes again; they resume from the last checkpoint (`python -m trainers.launch --max_restarts=N` "
    "does that)."
)


class Duty:
    """A server process's connection to the chief."""

    def __init__(self, cluster: ServedCluster, channel: Channel):
        self._cluster, self._channel = cluster, channel

    @classmethod
    def awaited(cls, cluster: ServedCluster, *, about: Mapping[str, str], deadline: float, token: str = "") -> "Duty":
        """Waits up to `deadline` seconds for the chief. It must have the same token, cluster and `about`."""
        own = {"workers": list(cluster.workers), "about": dict(about)}
        until = time.monotonic() + deadline
        with contextlib.closing(Guests(_listening(cluster), own, token)) as guests:
            while not guests.hellos:
                if time.monotonic() > until:
                    away = f" ({guests.turned_away} who came knew another token, or none)" if guests.turned_away else ""
                    raise PeerLostError(f"{cluster.name(0)} didn't come within {deadline:g} s{away}. {AGAIN}")
                guests.look()
                time.sleep(POLL_SECONDS)
            channel, chiefs = guests.hellos.popitem()  # it stays open
        if differs := _difference(cluster, own, chiefs):
            channel.send({"refused": differs, "code": ConfigurationError.exit_code})
            raise ConfigurationError(differs)
        return cls(cluster, channel)

    def begin(self) -> None:
        """Tells the chief that this process's TensorFlow server is up."""
        self._channel.send({"go": True})

    def stay(self, *, told_to_stop: Callable[[], bool], timeout: float = SILENT_SECONDS) -> bool:
        """Waits for the chief's permission to end. Returns true at the end of the run, false after `told_to_stop()`.

        If `told_to_stop()` is true, this process asks the chief first, so that it doesn't leave during a step. If the
        chief is gone, or silent for `timeout` seconds, it raises a `PeerLostError`.
        """
        asked = False
        try:
            for message in heard(self._channel, patience=lambda: timeout):
                if "leave" in message:
                    return False
                if "bye" in message:
                    self._linger()
                    return True
                if told_to_stop() and not asked:
                    asked = True
                    self._channel.send({"leaving": True})
        except LineLostError as error:
            raise PeerLostError(f"{self._cluster.name(0)} {error}. {AGAIN}") from None
        raise AssertionError("a line ends by an error")

    def _linger(self) -> None:
        """Waits up to 5 seconds for the chief's process to end: until then, it releases resources on this server."""
        self._channel.shutdown_write()
        until = time.monotonic() + ANSWER_SECONDS
        while not self._channel.closed and time.monotonic() < until:
            self._channel.wait(POLL_SECONDS)
            for _ in self._channel.messages():
                pass

    def close(self) -> None:
        """Closes the connection, so that the chief knows that this process is gone."""
        self._channel.close()


def _listening(cluster: ServedCluster) -> list[Any]:
    try:
        return opened(cluster, backlog=STRANGERS)
    except OSError as error:
        who = "another process has this port. End it" if error.errno == errno.EADDRINUSE else "see why"
        raise ConfigurationError(
            f"{cluster.name(cluster.index)} can't listen ({os.strerror(error.errno or 0)}): {who}, or choose another "
            "port in `TF_CONFIG.cluster`."
        ) from None


def _difference(cluster: ServedCluster, own: Mapping[str, Any], chiefs: Mapping[str, Any]) -> str:
    """Returns a text on how this process's cluster or packages differ from the chief's; "" if they don't."""
    me = cluster.name(cluster.index)
    if chiefs["workers"] != own["workers"]:
        return (
            f"{me} was given the cluster {own['workers']}, the chief {chiefs['workers']}: give all processes the same "
            "`TF_CONFIG.cluster`."
        )
    differing = [
        f"`{key}` is {own['about'].get(key, 'not given')} for {me} and {chiefs['about'].get(key, 'not given')} for the "
        "chief"
        for key in sorted({*own["about"], *chiefs["about"]})
        if own["about"].get(key) != chiefs["about"].get(key)
    ]
    return f"{'; '.join(differing)}: install the same packages for all processes." if differing else ""
