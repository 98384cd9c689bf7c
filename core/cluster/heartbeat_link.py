"""A heartbeat link between a chief and a server process: each end sends heartbeats and checks the other's."""

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from core.cluster.channel import Channel
from core.cluster.heartbeat import HEARTBEAT_SECONDS

SILENT_SECONDS = 60.0  # until the other end counts as hanging: TensorFlow may hold Python's lock for long


class LineLostError(Exception):
    """The way in which the other end was lost."""


def heard(channel: Channel, *, patience: Callable[[], float]) -> Iterator[Mapping[str, Any]]:
    """Yields the other end's messages without end, and `{}` between two looks; sends heartbeats all the while.

    Raises `LineLostError` if the connection closes, or nothing has come for `patience()` seconds.
    """
    looked = last = time.monotonic()
    shown = looked - HEARTBEAT_SECONDS
    while True:
        now, timeout = time.monotonic(), patience()
        beat = min(HEARTBEAT_SECONDS, timeout / 4)
        if now - looked > timeout / 2:  # this process itself was stopped, so the silence may be its own
            last = now
        looked = now
        for message in channel.messages():
            last = now
            yield message
        if channel.closed:
            raise LineLostError("was killed or its machine is gone: its connection closed")
        if now - last > timeout:
            raise LineLostError(f"hasn't been heard of for {timeout:g} s: it hangs or is stopped")
        yield {}
        if now - shown >= beat:
            shown = now
            channel.send({"alive": True})
        channel.flush()
        channel.wait(beat / 4)
