"""Liveness checks between the workers of one run, over plain sockets, independent of TensorFlow.

Workers connect to the chief's address before TensorFlow uses it. Then the chief closes its listening socket and keeps
the connections, on which both sides send heartbeats. If a worker is killed, its connection closes. A worker that stops
or hangs is silent. Collectives notice this only after minutes, if ever. The chief tells all workers which one was lost,
so all report the same worker.
"""

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from core.cluster.channel import ANSWER_SECONDS, Channel, broadcast, broadcast_and_close, cleaned
from core.cluster.rendezvous import gather, join
from core.cluster.topology import Cluster

HEARTBEAT_SECONDS = 1.0  # between two heartbeats, less if the timeout is short
MOST_ELSEWHERE = 8  # workers whose activities the chief reports


class Heartbeat:
    """This process's heartbeat connections: the chief's to each worker, or a worker's to the chief."""

    def __init__(self, cluster: Cluster, channels: Mapping[int, Channel]):
        self.cluster = cluster
        self.lost: str | None = None
        self.show(lambda: "")
        self._doings: dict[int, str] = {}  # their last reported activities
        self._channels = dict(channels)  # used only by the watching thread, while it runs
        self._known, self._leaving, self._quiet = threading.Event(), threading.Event(), threading.Event()
        self._quiet.set()  # no thread is watching
        self._lock = threading.Lock()

    @classmethod
    def meet(cls, cluster: Cluster, *, about: Mapping[str, str], deadline: float, token: str = "") -> "Heartbeat":
        """Waits up to `deadline` seconds for all workers. All must have the same token, cluster and `about`."""
        if cluster.size == 1:
            return cls(cluster, {})
        hello = {
            "index": cluster.index,
            "workers": list(cluster.workers),
            "about": dict(about),
            "who": f"process {os.getpid()} on {socket.gethostname()}",
        }
        # The messages are cleaned for terminals, and must be the proven ones.
        return cls(cluster, (gather if cluster.is_chief else join)(cluster, cleaned(hello), token, deadline))

    def watch(self, *, timeout: float, on_lost: Callable[[str], None]) -> None:
        """Sends and expects heartbeats in a thread. If a worker is lost, it calls `on_lost` with a sentence."""
        if not self._channels or self._leaving.is_set():
            return
        self._quiet.clear()
        threading.Thread(target=self._watch, args=(timeout, on_lost), daemon=True, name="watch of peers").start()

    def wait_for_word(self, seconds: float) -> str | None:
        """Waits at most `seconds` for the loss of a worker. Returns a sentence that names the worker, or None."""
        self._known.wait(seconds)
        return self.lost

    def leave(self, reason: str | None = None) -> None:
        """Says goodbye and closes the connections. With a `reason`, the others count this worker as lost."""
        with self._lock:
            if self._leaving.is_set():
                return
            self._leaving.set()
        self._quiet.wait(ANSWER_SECONDS)
        broadcast_and_close(self._channels.values(), {"bye": reason})
        self._channels.clear()

    def show(self, doing: Callable[[], str]) -> None:
        """Sets a function that returns this worker's current activity, for heartbeats to report."""
        self._doing = doing

    def elsewhere(self, doing: str) -> dict[str, str]:
        """Returns `{worker's name: activity}` for workers that last reported another activity than `doing`."""
        others = sorted(self._doings.copy().items())
        return {self.cluster.name(index): text for index, text in others if text not in ("", doing)}

    def _told_elsewhere(self) -> list[tuple[int, str]]:
        """Returns `(index, activity)` of workers with another activity than the chief's; [] outside the chief."""
        if not self.cluster.is_chief:
            return []
        found = [(index, text) for index, text in sorted(self._doings.items()) if text != self._doing()]
        return found[:MOST_ELSEWHERE]

    def _watch(self, timeout: float, on_lost: Callable[[str], None]) -> None:
        """Sends heartbeats and checks those of other workers, in a separate thread."""
        pause, beat = min(0.2, timeout / 8), min(HEARTBEAT_SECONDS, timeout / 4)
        looked = time.monotonic()
        heard, shown = dict.fromkeys(self._channels, looked), looked - beat
        while self._channels and self.lost is None and not self._leaving.wait(pause):
            now = time.monotonic()
            if now - looked > timeout / 2:  # this process itself was stopped, so the silence may be its own
                heard = dict.fromkeys(heard, now)
            looked = now
            for index in self._read():
                heard[index] = now
            for index in list(self._channels):
                if now - heard[index] > timeout:
                    self._lose(index, f"hasn't been heard of for {timeout:g} s: it hangs or is stopped")
            if now - shown >= beat:
                shown = now
                broadcast(self._channels.values(), {"alive": self._doing(), "elsewhere": self._told_elsewhere()})
        self._quiet.set()
        if self.lost is not None:
            self._known.set()
            on_lost(self.lost)

    def _read(self) -> Iterator[int]:
        """Reads and handles messages; yields the index of each message's sender."""
        for index, channel in list(self._channels.items()):
            channel.flush()
            for message in channel.messages():
                yield index
                match message:
                    case {"alive": str(doing), "elsewhere": list(others)}:
                        pairs = {pair[0]: pair[1] for pair in others if _is_doing(pair, self.cluster.size)}
                        pairs.pop(self.cluster.index, None)
                        self._doings = {**(self._doings if self.cluster.is_chief else pairs), index: doing}
                    case {"lost": int(lost), "how": str(how)} if 0 <= lost < self.cluster.size:
                        self._lose(lost, how)
                    case {"bye": reason}:
                        self._channels.pop(index).close()
                        if reason is not None:
                            self._lose(index, f"ended: {reason}")
                        break
            if channel.closed and index in self._channels:
                self._lose(index, "was killed or its machine is gone: its connection closed")

    def _lose(self, index: int, how: str) -> None:
        """Records that worker `index` was lost, and tells the others. Later losses are ignored."""
        if self.lost is not None:
            return
        self.lost = f"{self.cluster.name(index)} {how}"
        if index == self.cluster.index:
            self.lost = f"the others have given up this worker, and say that {self.lost}"
        for channel in self._channels.values():
            channel.send({"lost": index, "how": how})
            channel.shutdown_write()
        if index in self._channels:
            self._channels.pop(index).close()


def _is_doing(pair: object, workers: int) -> bool:
    """Says whether `pair` is a list of a worker's index and an activity. A peer may send anything."""
    match pair:
        case [int(index), str()]:
            return 0 <= index < workers
    return False


SILENT_SECONDS = 60.0  # until the other end counts as hanging: TensorFlow may hold Python's lock for long


class LineLostError(Exception):
    """A lost connection. The message says how the process at the other end was lost."""


def heard(channel: Channel, *, patience: Callable[[], float]) -> Iterator[Mapping[str, Any]]:
    """Yields the other end's messages, and `{}` after each check for messages. Meanwhile it sends heartbeats.

    It raises a `LineLostError` if the connection closes, or if no message has come for `patience()` seconds.
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
