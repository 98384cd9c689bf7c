"""Rendezvous of a chief and a worker in this process, with a peer that sends garbage or a line that corrupts data."""

import contextlib
import json
import random
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

from core.cluster import admission, channel, heartbeat, rendezvous
from core.cluster.handshake import proof
from core.cluster.heartbeat import Heartbeat
from core.cluster.topology import Cluster
from core.errors import PeerLostError
from tools.campaign.mutation import mutated

ANSWER_SECONDS = 0.5  # in place of 5, so that the deadline is longer here as well
DEADLINE = 3.0  # seconds; an undisturbed rendezvous takes a tenth of it
LIMIT = 15.0  # seconds in which both must have ended, goodbyes included
SECRET = "the run's own"
CHIEF, OTHERS = "chief:1", ("127.0.0.1:1", "127.0.0.1:2")
ABOUT = {"configuration": "abc"}


def hello() -> bytes:
    """Returns the last of three workers' message to the chief, with a placeholder for its address."""
    content = {"index": 2, "workers": [CHIEF, *OTHERS], "about": ABOUT, "who": "me"}
    return json.dumps(content).encode()


def meet_beside_an_insider(content: bytes, folder: Path) -> None:
    """Sends a corrupted hello from the last of three workers, then a correct one: all meet, or get the reason."""
    workers = (_free_address(), *OTHERS)
    with _speaking([content, hello()], workers[0], token="") as spoken:
        trouble = _both(workers, token="", once=spoken)
    if trouble:
        raise trouble[0]


def meet_beside_a_stranger(content: bytes, folder: Path) -> None:
    """Lets a peer without the token say hello first: the two meet all the same."""
    workers = (_free_address(), OTHERS[0])
    with _speaking([content], workers[0], token="a guess") as spoken:
        trouble = _both(workers, token=SECRET, once=spoken)
    assert not trouble, trouble


def meet_through_a_relay(content: bytes, folder: Path) -> None:
    """Corrupts a message of their first connection: they meet over a second, unless the chief took the first."""
    relay = Relay(random.Random(content))
    with mock.patch.object(rendezvous, "knock", relay.connect):
        trouble = _both((_free_address(), OTHERS[0]), token=SECRET)
    if trouble and relay.took_it_for_good and all(isinstance(error, PeerLostError) for error in trouble):
        raise trouble[0]
    assert not trouble, (trouble, relay.garbled)


def _both(workers: Sequence[str], *, token: str, once: threading.Event | None = None) -> list[BaseException]:
    """Runs chief and worker up to their goodbye, the worker `once` it may start; returns their exceptions."""
    raised: dict[int, BaseException] = {i: TimeoutError(f"worker {i}: no end within {LIMIT} s") for i in (0, 1)}

    def take_part(index: int) -> None:
        try:
            if index and once:
                once.wait(LIMIT)
            peers = Heartbeat.meet(Cluster(tuple(workers), index), about=ABOUT, deadline=DEADLINE, token=token)
            peers.watch(timeout=DEADLINE, on_lost=lambda sentence: None)
            peers.leave()
            del raised[index]
        except BaseException as error:
            raised[index] = error

    with contextlib.ExitStack() as stack:
        for module in (channel, admission, rendezvous, heartbeat):
            stack.enter_context(mock.patch.object(module, "ANSWER_SECONDS", ANSWER_SECONDS))
        threads = [threading.Thread(target=take_part, args=(index,), daemon=True) for index in (0, 1)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(LIMIT)
    return [raised[index] for index in sorted(raised)]


def _free_address() -> str:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{found.getsockname()[1]}"


@contextlib.contextmanager
def _speaking(contents: Sequence[bytes], address: str, *, token: str) -> Iterator[threading.Event]:
    """Sends messages to the chief one after the other, once it listens; sets the event after the first."""
    spoken, ended = threading.Event(), threading.Event()
    texts = [content.replace(CHIEF.encode(), address.encode()) for content in contents]
    speaker = threading.Thread(target=_speak, args=(texts, address, token, spoken, ended), daemon=True)
    speaker.start()
    yield spoken
    ended.set()
    speaker.join(LIMIT)


def _speak(texts: Sequence[bytes], address: str, token: str, spoken: threading.Event, ended: threading.Event) -> None:
    host, port = address.split(":")
    left = list(texts)
    while left and not ended.wait(0.01):
        with contextlib.suppress(OSError), socket.create_connection((host, int(port)), timeout=LIMIT) as connection:
            challenge = _hear(connection).get("challenge", "")
            said = left.pop(0)
            try:
                hello = json.loads(said)
            except (ValueError, RecursionError):
                connection.sendall(_packed(said))
            else:
                shown = proof(token, "worker", challenge, "mine", hello)
                connection.sendall(_packed(json.dumps({"hello": hello, "answer": "mine", "proof": shown}).encode()))
            spoken.set()
            while connection.recv(1 << 16):  # until the chief closes it, or all say goodbye
                pass


def _hear(connection: socket.socket) -> dict[str, Any]:
    head = connection.recv(8, socket.MSG_WAITALL)
    with contextlib.suppress(ValueError):
        said = json.loads(connection.recv(int.from_bytes(head[4:], "big"), socket.MSG_WAITALL))
        return said if isinstance(said, dict) else {}
    return {}


def _packed(content: bytes) -> bytes:
    return b"TAPE" + len(content).to_bytes(4, "big") + content


class Relay:
    """Relays a worker's first connection to its chief, and corrupts one message."""

    def __init__(self, chance: random.Random):
        self.chance = chance
        self.from_chief, self.number = chance.random() < 0.6, chance.randrange(3)
        self.garbled: tuple[bytes, bytes] | None = None
        self.took_it_for_good = False
        self._connect: Callable[[str], socket.socket] = rendezvous.knock
        self._first = True

    def connect(self, address: str) -> socket.socket:
        """Connects as `rendezvous` does, the first time through this relay."""
        chief = self._connect(address)
        if not self._first:
            return chief
        self._first = False
        worker, ours = socket.socketpair()
        for source, target, garbles in ((chief, ours, self.from_chief), (ours, chief, not self.from_chief)):
            source.settimeout(LIMIT)
            threading.Thread(target=self._pass_on, args=(source, target, garbles), daemon=True).start()
        return worker

    def _pass_on(self, source: socket.socket, target: socket.socket, garbles: bool) -> None:
        number = 0
        with contextlib.suppress(OSError):
            while said := source.recv(1 << 16):
                if garbles and number == self.number:
                    passed = mutated(said, self.chance)
                    self.garbled = said, passed
                    self.took_it_for_good = b"welcome" in said or b'"wait"' in said or b'"go"' in said
                    said = passed
                number += 1
                target.sendall(said)
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
