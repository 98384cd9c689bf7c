"""A line between a chief and one who serves it: each shows that it lives, and sees whether the other does."""

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from core.cluster.channel import Channel
from core.cluster.heartbeat import HEARTBEAT_SECONDS

SILENT_SECONDS = 60.0  # after which the other end hangs: TensorFlow may hold Python's lock, and its threads, for many


class LineLostError(Exception):
    """Says how the other end was lost."""


def heard(channel: Channel, *, patience: Callable[[], float]) -> Iterator[Mapping[str, Any]]:
    """Yields what the other end says, for ever, and nothing (`{}`) between two looks; shows all the while that we live.

    Raises `LineLostError` where the connection is closed, or nothing has come for `patience()` seconds.
    """
    looked = last = time.monotonic()
    shown = looked - HEARTBEAT_SECONDS
    while True:
        now, timeout = time.monotonic(), patience()
        beat = min(HEARTBEAT_SECONDS, timeout / 4)
        if now - looked > timeout / 2:  # this process itself was stopped, or starved: the silence may be its own
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
