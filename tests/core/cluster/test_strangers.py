"""Strangers at the workers' rendezvous can't stop, delay or end a run, or write to a terminal."""

import contextlib
import json
import os
import socket
import threading
import time
from collections.abc import Iterator

import pytest
from peer_lab import Worker, addresses, connected, hear, introduce, is_shown_out, packed

from core.cluster import admission as guests_module
from core.cluster import rendezvous
from core.cluster.admission import PATIENCE_SECONDS, STRANGERS, Guests
from core.cluster.channel import Channel, cleaned
from core.cluster.handshake import proof
from core.cluster.heartbeat import Heartbeat
from core.cluster.topology import Cluster
from core.errors import PeerLostError

pytestmark = pytest.mark.waits

SECRET = "the run's own"


def hello_of(workers: list[str], index: int, **changes: object) -> dict:
    return {"index": index, "workers": workers, "about": {"configuration": "abc"}, "who": "a stranger", **changes}


# --- strangers as guests ----------------------------------------------------------------------------------------------


CHANGES = [{}, {"index": 0}, {"index": 7}, {"workers": ["a:1", "b:2"]}, {"about": {"configuration": "another"}}]


@pytest.mark.parametrize("token", ["", "a guess"])
def test_well_formed_hello_of_a_stranger_stops_no_worker(start, token):
    workers = addresses(2)
    chief = start(workers, 0, token=SECRET)
    for changes in CHANGES:
        with connected(workers[0]) as stranger:
            introduce(stranger, hello_of(workers, 1) | changes, token)
            assert hear(stranger) == {"stranger": True}, changes
            assert is_shown_out(stranger), changes
        assert chief.says_nothing(), changes
    other = start(workers, 1, token=SECRET)
    chief.expect("met")
    other.expect("met")
    assert [line for line in chief.warnings if "turned away 127.0.0.1, who knows another `TAPELOOP_TOKEN`" in line]


def test_replayed_hello_admits_no_stranger(start):
    """A hello answers one challenge; a copy of it answers no other."""
    workers = addresses(3)
    chief = start(workers, 0, token=SECRET)
    hello = hello_of(workers, 1)
    with connected(workers[0]) as first, connected(workers[0]) as second, connected(workers[0]) as third:
        challenge = hear(first)["challenge"]
        said = {"hello": hello, "answer": "x", "proof": proof(SECRET, "worker", challenge, "x", hello)}
        hear(second)
        second.sendall(packed(said))  # word for word, to another question
        assert hear(second) == {"stranger": True}
        hear(third)
        third.sendall(packed({**said, "hello": hello_of(workers, 2)}))
        assert hear(third) == {"stranger": True}
        first.sendall(packed(said))
        assert "welcome" in hear(first)
    assert chief.says_nothing()


def test_many_silent_strangers_exhaust_nothing_and_block_no_worker(start):
    workers = addresses(2)
    chief = start(workers, 0, token=SECRET)
    with contextlib.ExitStack() as stack:
        for _ in range(3 * STRANGERS):
            stack.enter_context(connected(workers[0]))
        other = start(workers, 1, token=SECRET)
        other.expect("met")
        chief.expect("met")
        open_files = len(os.listdir(f"/proc/{chief.process.pid}/fd"))
        assert open_files < 20  # the strangers are gone with the rendezvous


def test_no_more_strangers_are_in_at_a_time_than_there_is_room_for(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(guests_module.time, "monotonic", lambda: now[0])
    listener = socket.create_server(("127.0.0.1", 0), backlog=4 * STRANGERS)
    guests = Guests([listener], hello_of(["a:1", "b:2"], 0), SECRET)
    with contextlib.ExitStack() as stack, contextlib.closing(guests):
        crowd = [stack.enter_context(socket.create_connection(listener.getsockname())) for _ in range(2 * STRANGERS)]
        late = stack.enter_context(socket.create_connection(listener.getsockname()))
        guests.look()
        first = list(guests.strangers)
        assert len(first) == STRANGERS
        guests.look()
        assert list(guests.strangers) == first  # who has just come has yet to answer
        for _ in range(2):  # the second half of the crowd, and then the worker
            now[0] += 2 * PATIENCE_SECONDS
            guests.look()
        assert len(guests.strangers) == STRANGERS
        assert is_shown_out(crowd[0])
        stack.enter_context(socket.create_connection(listener.getsockname()))
        introduce(late, hello_of(["a:1", "b:2"], 1), SECRET)
        assert guests.look()
        assert [hello["index"] for hello in guests.hellos.values()] == [1]


def test_a_worker_without_the_token_is_named_as_a_reason_when_the_chief_gives_up(start):
    workers = addresses(2)
    chief = start(workers, 0, token=SECRET, deadline=2.0)
    other = start(workers, 1, token="mistyped", deadline=1.0)
    assert "who listens there knows another `TAPELOOP_TOKEN`, or none" in other.expect("PeerLostError")
    said = chief.expect("PeerLostError")
    assert f"worker 1 ({workers[1]}) didn't come" in said
    assert "who came knew another `TAPELOOP_TOKEN`, or none" in said
    assert {chief.exit_code(), other.exit_code()} == {6}


# --- impostors as chiefs ----------------------------------------------------------------------------------------------


class Impostor:
    """Listens in the chief's place, and sends its lines to every peer: first politely, if it can."""

    def __init__(self, *, token: str | None, says: list[object], again: object = None, closes: bool = False):
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.token, self.says, self.again, self.closes = token, says, again, closes
        self.ended = threading.Event()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
            while True:
                caller = stack.enter_context(self.listener.accept()[0])
                threading.Thread(target=self._talk, args=(caller,), daemon=True).start()

    def _talk(self, caller: socket.socket) -> None:
        with contextlib.suppress(OSError, AssertionError, ValueError):
            if self.token is not None:
                caller.sendall(packed({"challenge": "c"}))
                said = hear(caller)
                shown = proof(self.token, "chief", "c", said["answer"], said["hello"])
                caller.sendall(packed({"welcome": shown}))
            for message in self.says:
                caller.sendall(packed(message))
            while self.again is not None and not self.ended.wait(0.2):
                caller.sendall(packed(self.again))
            if self.closes:
                caller.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.ended.set()
        self.listener.shutdown(socket.SHUT_RDWR)  # else who waits in `accept` stays there, with all that came
        self.listener.close()


@pytest.fixture
def impostor() -> Iterator[object]:
    with contextlib.ExitStack() as stack:
        yield lambda **settings: stack.enter_context(contextlib.closing(Impostor(**settings)))


KINDS = {
    "silence": {"says": []},
    "wait for ever": {"says": [], "again": {"wait": True}},
    "go and close": {"says": [{"go": True}], "closes": True},
    "go": {"says": [{"go": True}]},
    "refused": {"says": [{"refused": "x"}]},
    "refused with a list": {"says": [{"refused": "x", "code": [6]}]},
    "refused with a code": {"says": [{"refused": "x", "code": 2}]},
    "nonsense": {"says": [{"challenge": 7}, {"welcome": []}]},
}


class Clock:
    """A waiting worker's clock: time passes while the worker sleeps."""

    def __init__(self):
        self.now = 0.0

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds
        time.sleep(seconds / 50)


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    monkeypatch.setattr(rendezvous, "time", made)
    return made


POLITE = ["silence", "go", "refused"]  # at least one proof for each answer


@pytest.mark.parametrize(
    ("kind", "known"), [*((kind, None) for kind in KINDS), *((kind, "a guess") for kind in POLITE)]
)
def test_an_impostor_of_a_chief_holds_no_worker_beyond_its_deadline(impostor, clock, kind, known):
    chief = impostor(token=known, **KINDS[kind])
    workers = (f"127.0.0.1:{chief.listener.getsockname()[1]}", "127.0.0.1:1")
    with pytest.raises(PeerLostError, match=r"the chief, worker 0 .* didn't answer within 8 s") as caught:
        Heartbeat.meet(Cluster(workers, 1), about={}, deadline=8.0, token=SECRET)
    assert clock.now == pytest.approx(8.0, abs=0.5)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", ["silence", "wait for ever", "refused", "refused with a list", "nonsense"])
def test_an_impostor_that_no_token_tells_from_a_chief_holds_no_worker_either(impostor, clock, kind):
    chief = impostor(token="", **KINDS[kind])
    workers = (f"127.0.0.1:{chief.listener.getsockname()[1]}", "127.0.0.1:1")
    with pytest.raises(PeerLostError, match=r"didn't answer within 8 s"):
        Heartbeat.meet(Cluster(workers, 1), about={}, deadline=8.0)
    assert clock.now == pytest.approx(8.0, abs=0.5)


def test_a_chief_that_says_go_and_goes_is_lost(start, impostor):
    chief = impostor(token="", **KINDS["go and close"])
    workers = [f"127.0.0.1:{chief.listener.getsockname()[1]}", "127.0.0.1:1"]
    worker = start(workers, 1)
    worker.expect("met")
    assert worker.expect("lost").endswith("was killed or its machine is gone: its connection closed")


# --- what strangers say -----------------------------------------------------------------------------------------------

ESCAPES = "\x1b[2J\x1b]0;owned\x07\r\n\x9b31m\u202e\ud800 red"


def test_nothing_that_a_terminal_obeys_comes_through_a_channel():
    ours, theirs = socket.socketpair()
    with ours:
        channel = Channel(theirs)
        ours.sendall(packed({"how": ESCAPES, ESCAPES: [{"who": ESCAPES}], "n": 1}))
        (said,) = list(channel.messages())
        channel.close()
    assert json.dumps(said, ensure_ascii=False).isprintable()
    assert said["how"].endswith("red")
    assert cleaned(said) == said


def test_a_long_text_is_cut():
    assert len(cleaned("x" * 100_000)) == 5000


def test_a_message_as_deep_as_it_is_long_is_nonsense():
    ours, theirs = socket.socketpair()
    with ours:
        channel = Channel(theirs)
        content = b"[" * 50_000 + b"]" * 50_000
        ours.sendall(b"TAPE" + len(content).to_bytes(4, "big") + content)
        while not channel.closed:
            assert list(channel.messages()) == []
        channel.close()


HARMLESS = [
    *({"lost": x, "how": "x"} for x in (7, -1, "a", 1.5)),
    *({"lost": 0}, {"lost": [], "how": {}}, {"alive": 3}, {}),
    *({"alive": "x", "elsewhere": x} for x in ([1], [[5, "x"]], [["a", 3]], {}, [[0, "me"], [1, ESCAPES]])),
]


@pytest.mark.parametrize(
    ("says", "lost"),
    [
        (HARMLESS, None),
        ([{"lost": 1, "how": ESCAPES}], "worker 1"),
        ([{"bye": {"not": ["a", "text"]}}], "worker 1"),
        ([{"bye": ESCAPES}], "worker 1"),
    ],
)
def test_worker_that_sends_garbage_later_stops_no_watch(start, says, lost):
    """The message comes from an admitted process, and the chief still notices that its connection closes."""
    workers = addresses(2)
    chief: Worker = start(workers, 0, token=SECRET)
    with connected(workers[0]) as other:
        introduce(other, hello_of(workers, 1), SECRET)
        while hear(other) != {"go": True}:
            pass
        chief.expect("met")
        for message in says:
            other.sendall(packed(message))
        if lost is None:
            chief.tell("word 1")
            assert chief.expect("word") is None
    said = chief.expect("lost")
    assert said.isprintable()
    assert (lost or "its connection closed") in said
