"""The workers of one run know of each other, without TensorFlow's help: plain sockets, before and next to its own.

They meet on the chief's address before TensorFlow takes it over: the listening socket is closed, the connections stay.
Over these each worker then shows that it lives. A killed one closes its connection; a stopped or hanging one falls
silent, which no collective would notice for minutes, if ever. The chief hears everybody, everybody hears the chief, and
the chief tells all who was lost, so that all say the same.
"""

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping

from core.cluster.channel import ANSWER_SECONDS, Channel, broadcast, broadcast_and_close, cleaned
from core.cluster.rendezvous import gather, join
from core.cluster.topology import Cluster

HEARTBEAT_SECONDS = 1.0  # between two signs of life, less where the timeout is short
MOST_ELSEWHERE = 8  # workers of which the chief tells what they do


class Heartbeat:
    """Watches over this worker's connections: the chief's to everybody, everybody's to the chief."""

    def __init__(self, cluster: Cluster, channels: Mapping[int, Channel]):
        self.cluster = cluster
        self.lost: str | None = None
        self.show(lambda: "")
        self._doings: dict[int, str] = {}  # what they do, as far as they have said
        self._channels = dict(channels)  # the watching thread's alone, while it runs
        self._known, self._leaving, self._quiet = threading.Event(), threading.Event(), threading.Event()
        self._quiet.set()  # nobody watches
        self._lock = threading.Lock()

    @classmethod
    def meet(cls, cluster: Cluster, *, about: Mapping[str, str], deadline: float, token: str = "") -> "Heartbeat":
        """Waits at most `deadline` seconds for all; they must know the token, and agree in cluster and `about`."""
        if cluster.size == 1:
            return cls(cluster, {})
        hello = {
            "index": cluster.index,
            "workers": list(cluster.workers),
            "about": dict(about),
            "who": f"process {os.getpid()} on {socket.gethostname()}",
        }
        # What they hear is cleaned, and has to be what was proven.
        return cls(cluster, (gather if cluster.is_chief else join)(cluster, cleaned(hello), token, deadline))

    def watch(self, *, timeout: float, on_lost: Callable[[str], None]) -> None:
        """Starts to show life and to look for it; calls `on_lost` once, in its own thread, with a sentence."""
        if not self._channels or self._leaving.is_set():
            return
        self._quiet.clear()
        threading.Thread(target=self._watch, args=(timeout, on_lost), daemon=True, name="watch of peers").start()

    def wait_for_word(self, seconds: float) -> str | None:
        """Returns who was lost, as soon as it is known; `None` if nobody is after some time."""
        self._known.wait(seconds)
        return self.lost

    def leave(self, reason: str | None = None) -> None:
        """Says goodbye, so that the closed connection isn't taken for a loss; with a reason it is one."""
        with self._lock:
            if self._leaving.is_set():
                return
            self._leaving.set()
        self._quiet.wait(ANSWER_SECONDS)
        broadcast_and_close(self._channels.values(), {"bye": reason})
        self._channels.clear()

    def show(self, doing: Callable[[], str]) -> None:
        """Lets the others know, from now on, what this worker is `doing`."""
        self._doing = doing

    def elsewhere(self, doing: str) -> dict[str, str]:
        """Returns, by their names, the workers that do something else than `doing`."""
        others = sorted(self._doings.copy().items())
        return {self.cluster.name(index): text for index, text in others if text not in ("", doing)}

    def _told_elsewhere(self) -> list[tuple[int, str]]:
        """Returns who does something else than the chief: it alone hears everybody."""
        if not self.cluster.is_chief:
            return []
        found = [(index, text) for index, text in sorted(self._doings.items()) if text != self._doing()]
        return found[:MOST_ELSEWHERE]

    def _watch(self, timeout: float, on_lost: Callable[[str], None]) -> None:
        """Sends, in the watching thread, that this worker lives, and looks who else does."""
        pause, beat = min(0.2, timeout / 8), min(HEARTBEAT_SECONDS, timeout / 4)
        looked = time.monotonic()
        heard, shown = dict.fromkeys(self._channels, looked), looked - beat
        while self._channels and self.lost is None and not self._leaving.wait(pause):
            now = time.monotonic()
            if now - looked > timeout / 2:  # this process itself was stopped, or starved: the silence may be its own
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
        """Takes in what the others have said, and yields who has said anything."""
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
        """Ends the run. The first loss is the one that counts, for everybody."""
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
    """Says whether this is the number of a worker and what it does, as another end may have sent anything."""
    match pair:
        case [int(index), str()]:
            return 0 <= index < workers
    return False
