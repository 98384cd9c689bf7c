"""Workers meet and notice each other's end: real processes on this machine, killed and stopped for real."""

import contextlib
import json
import os
import queue
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from core.distribution.cluster import Cluster
from core.distribution.peers import Peers
from core.errors import PeerLostError

LONG = 60.0  # seconds after which a test would hang; none is meant to take a part of it


class Worker:
    """A process and what it has said."""

    def __init__(self, workers: Sequence[str], index: int, **order: object):
        order = {"about": {"configuration": "abc"}, "deadline": LONG, "timeout": LONG, **order}
        order |= {"workers": list(workers), "index": index}
        self.name = f"worker {index} ({workers[index]})"
        self.process = subprocess.Popen(
            [sys.executable, "-S", str(Path(__file__).with_name("peer_process.py")), json.dumps(order)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={key: x for key, x in os.environ.items() if not key.startswith(("TF_CONFIG", "SLURM"))},
        )
        self.events: queue.Queue[list[str]] = queue.Queue()
        threading.Thread(target=self._listen, daemon=True).start()
        self.expect("started")

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.events.put(json.loads(line))

    def expect(self, event: str, *, within: float = LONG) -> str:
        """The next thing that it says is this; what belongs to it."""
        try:
            found, text = self.events.get(timeout=within)
        except queue.Empty:
            pytest.fail(f"{self.name} said nothing for {within} s, but should say `{event}`")
        assert found == event, (self.name, found, text)
        return text

    def says_nothing(self) -> bool:
        return self.events.empty()

    def tell(self, command: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def exit_code(self) -> int:
        return self.process.wait(LONG)

    def end(self) -> None:
        with contextlib.suppress(OSError):
            self.process.send_signal(signal.SIGCONT)
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stderr):
            with contextlib.suppress(OSError):
                stream.close()


@pytest.fixture
def start() -> Iterator[object]:
    """`start(workers, index, ...)` starts a worker, which ends with the test."""
    with contextlib.ExitStack() as stack:

        def started(workers: Sequence[str], index: int, **order: object) -> Worker:
            worker = Worker(workers, index, **order)
            stack.callback(worker.end)
            return worker

        yield started


def addresses(count: int) -> list[str]:
    """Of this machine, and free."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [f"127.0.0.1:{each.getsockname()[1]}" for each in sockets]


def started_in(order: Sequence[int], start, **settings) -> list[Worker]:
    workers = addresses(len(order))
    by_index = {index: start(workers, index, **settings) for index in order}
    return [by_index[index] for index in sorted(order)]


def met(count: int, start, **settings) -> list[Worker]:
    found = started_in(range(count), start, **settings)
    for worker in found:
        worker.expect("met")
    return found


def connected(address: str) -> socket.socket:
    host, port = address.split(":")
    for _ in range(200):
        with contextlib.suppress(ConnectionRefusedError):
            return socket.create_connection((host, int(port)), timeout=LONG)
        threading.Event().wait(0.05)
    pytest.fail(f"nobody listens at {address}")


def packed(message: object) -> bytes:
    content = json.dumps(message).encode()
    return b"TAPE" + struct.pack("!I", len(content)) + content


# --- meeting ----------------------------------------------------------------------------------------------------------


def test_one_worker_meets_nobody_and_listens_nowhere():
    (address,) = addresses(1)
    peers = Peers.meet(Cluster((address,), 0), about={}, deadline=0.0)
    peers.watch(timeout=0.01, on_lost=pytest.fail)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", int(address.split(":")[1])))
    assert peers.wait_for_word(0.1) is None
    peers.leave()
    assert peers.lost is None


@pytest.mark.parametrize("order", [(0, 1), (1, 0), (0, 1, 2), (2, 0, 1), (2, 1, 0)])
def test_workers_meet_in_any_order_of_start(start, order):
    workers = started_in(order, start)
    for worker in workers:
        worker.expect("met")


def test_workers_meet_where_the_system_prefers_another_name_for_this_machine(start):
    workers = [address.replace("127.0.0.1", "localhost") for address in addresses(2)]
    found = [start(workers, 1), start(workers, 0)]
    for worker in found:
        worker.expect("met")


def test_nobody_goes_on_before_the_last_has_come(start):
    workers = addresses(3)
    first = [start(workers, 1), start(workers, 0)]
    last = start(workers, 2)
    for worker in (last, *first):
        worker.expect("met")
    lonely = addresses(2)
    chief = start(lonely, 0)
    with connected(lonely[0]):
        pass
    assert chief.says_nothing()


def test_a_missing_worker_is_named_by_all_when_the_chief_has_waited_long_enough(start):
    workers = addresses(3)
    chief = start(workers, 0, deadline=4.0)
    connected(workers[0]).close()
    hasty = start(workers, 1, deadline=1.5)  # it has seen that there is a chief
    for worker in (chief, hasty):
        said = worker.expect("PeerLostError")
        assert f"worker 2 ({workers[2]}) didn't come within 4 s" in said
        assert "start all workers again" in said
        assert "worker 1" not in said
        assert worker.exit_code() == 6


def test_a_chief_that_never_comes_is_named(start):
    workers = addresses(2)
    worker = start(workers, 1, deadline=0.5)
    said = worker.expect("PeerLostError")
    assert f"the chief, worker 0 ({workers[0]}), didn't answer within 0.5 s (Connection refused)" in said


def test_a_connection_that_is_its_own_other_end_is_no_chief(monkeypatch):
    def knock(*_, **__):
        both = socket.socket()
        both.bind(("127.0.0.1", 0))
        both.connect(both.getsockname())
        return both

    monkeypatch.setattr(socket, "create_connection", knock)
    with pytest.raises(PeerLostError, match="nobody listens there"):
        Peers.meet(Cluster(tuple(addresses(2)), 1), about={}, deadline=0.3)


def test_a_program_that_is_no_chief_is_told_apart_from_one_that_never_came(start):
    workers = addresses(2)
    with socket.create_server(("127.0.0.1", int(workers[0].split(":")[1]))) as listener:
        worker = start(workers, 1, deadline=1.0)
        caller, _ = listener.accept()
        caller.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        assert "another program" in worker.expect("PeerLostError")
        caller.close()


def test_two_processes_with_one_index_are_refused_to_all(start):
    workers = addresses(3)
    found = [start(workers, index) for index in (0, 1, 1, 2)]
    said = {worker.expect("ConfigurationError") for worker in found}
    (text,) = said
    assert f"two processes are worker 1 ({workers[1]})" in text
    assert all(f"process {twin.process.pid} on " in text for twin in found[1:3])
    assert "`TF_CONFIG.task.index`" in text
    assert {worker.exit_code() for worker in found} == {2}


def test_a_second_chief_finds_the_port_taken_and_the_first_is_not_disturbed(start):
    workers = addresses(2)
    chief = start(workers, 0)
    connected(workers[0]).close()
    second = start(workers, 0)
    said = second.expect("ConfigurationError")
    assert workers[0] in said
    assert "another process of the cluster" in said
    other = start(workers, 1)
    chief.expect("met")
    other.expect("met")


def test_another_list_of_workers_is_refused_to_all(start):
    workers, more = addresses(2), addresses(1)
    found = [start(workers, 0), start([*workers, *more], 1)]
    said = {worker.expect("ConfigurationError") for worker in found}
    (text,) = said
    assert str(workers) in text
    assert str([*workers, *more]) in text
    assert "`TF_CONFIG.cluster`" in text


def test_another_configuration_is_refused_with_each_workers_value(start):
    workers = addresses(3)
    abouts = [
        {"configuration": "abc", "tensorflow": "2.21.0"},
        {"configuration": "def", "tensorflow": "2.21.0"},
        {"configuration": "abc", "tensorflow": "2.21.0", "extra": "5"},
    ]
    found = [start(workers, index, about=about) for index, about in enumerate(abouts)]
    said = {worker.expect("ConfigurationError") for worker in found}
    (text,) = said
    assert "`configuration` is abc for worker 0, 2 and def for worker 1" in text
    assert "`extra` is not given for worker 0, 1 and 5 for worker 2" in text
    assert "tensorflow" not in text
    assert {worker.exit_code() for worker in found} == {2}


@pytest.mark.parametrize(
    "nonsense",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"TAPE" + struct.pack("!I", 1 << 31) + b"x" * 1000,
        b"TAPE" + struct.pack("!I", 5) + b"{{{{{",
        packed([1, 2]),
        packed({"index": 1}),
        packed({"index": True, "workers": [], "about": {}, "who": ""}),
        packed({"index": 1, "workers": "a:1", "about": {}, "who": ""}),
    ],
)
def test_a_stranger_who_talks_nonsense_is_shown_out_and_disturbs_nobody(start, nonsense):
    workers = addresses(2)
    chief = start(workers, 0)
    with connected(workers[0]) as stranger:
        stranger.sendall(nonsense)
        with contextlib.suppress(ConnectionResetError):
            assert stranger.recv(1) == b""
    other = start(workers, 1)
    chief.expect("met")
    other.expect("met")


def test_a_silent_stranger_holds_up_nobody(start):
    workers = addresses(2)
    chief = start(workers, 0)
    with connected(workers[0]), connected(workers[0]) as other_stranger:
        other_stranger.sendall(b"TAP")
        other = start(workers, 1)
        chief.expect("met", within=LONG)
        other.expect("met")


def test_a_worker_that_died_before_all_had_come_may_come_again(start):
    workers = addresses(3)
    chief = start(workers, 0)
    hello = {"index": 1, "workers": workers, "about": {"configuration": "abc"}, "who": "this test"}
    with connected(workers[0]) as first:
        first.sendall(packed(hello))
        assert first.recv(100).startswith(packed({"wait": True}))
    for worker in (start(workers, 1), start(workers, 2), chief):
        worker.expect("met")


@pytest.mark.parametrize("index", [0, 1])
def test_waiting_for_others_can_be_interrupted(start, index):
    worker = start(addresses(2), index)
    worker.signal(signal.SIGINT)
    worker.expect("interrupted")
    assert worker.exit_code() == 130


def test_the_port_can_be_listened_at_again_while_the_connections_stay_open(start):
    chief, other = met(2, start)
    chief.tell("listen")
    chief.expect("listened")
    other.tell("leave for the test")
    assert chief.expect("lost") == f"{other.name} ended: for the test"


def test_tensorflow_takes_over_the_addresses_while_the_connections_stay_open(start):
    workers = met(2, start)
    for worker in workers:
        worker.tell("train")
    for worker in workers:
        assert worker.expect("trained", within=3 * LONG) == "3.0"
    workers[1].signal(signal.SIGKILL)
    assert workers[0].expect("lost").startswith(f"{workers[1].name} was killed")


def test_a_chief_that_starts_beside_a_running_one_finds_the_port_taken(start):
    workers = addresses(2)
    with socket.create_server(("127.0.0.1", int(workers[0].split(":")[1]))):
        assert "something else has this port" in start(workers, 0).expect("ConfigurationError")


# --- watching ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("victim", [0, 1, 2])
def test_a_killed_worker_is_named_by_all_survivors(start, victim):
    workers = met(3, start)
    workers[victim].signal(signal.SIGKILL)
    for survivor in workers:
        if survivor is not workers[victim]:
            said = survivor.expect("lost")
            assert said == f"{workers[victim].name} was killed or its machine is gone: its connection closed"
            survivor.tell("word 0")
            assert survivor.expect("word") == said


@pytest.mark.parametrize("victim", [0, 2])
def test_a_stopped_worker_is_named_by_all_and_knows_when_it_is_continued(start, victim):
    workers = met(3, start, timeout=2.0)
    stopped = workers[victim]
    stopped.signal(signal.SIGSTOP)
    silent = f"{stopped.name} hasn't been heard of for 2 s: it hangs or is stopped"
    for survivor in workers:
        if survivor is not stopped:
            assert survivor.expect("lost") == silent
    stopped.signal(signal.SIGCONT)
    assert stopped.expect("lost") == f"the others have given up this worker, and say that {silent}"


def test_a_worker_that_was_given_up_knows_though_the_others_have_ended(start):
    chief, stopped = met(2, start, timeout=2.0)
    stopped.signal(signal.SIGSTOP)
    chief.expect("lost")
    chief.tell("exit")
    chief.exit_code()
    stopped.signal(signal.SIGCONT)
    assert "given up this worker" in stopped.expect("lost")


@pytest.mark.parametrize("victim", [0, 1])
def test_a_short_stop_is_no_loss_and_accuses_nobody(start, victim):
    workers = met(3, start, timeout=5.0)
    workers[victim].signal(signal.SIGSTOP)
    workers[2].tell("word 1")
    assert workers[2].expect("word") is None
    workers[victim].signal(signal.SIGCONT)
    workers[victim].tell("word 1")
    assert workers[victim].expect("word") is None
    assert all(worker.says_nothing() for worker in workers)


def test_all_stopped_and_continued_together_are_no_loss(start):
    workers = met(2, start, timeout=2.0)
    for worker in workers:
        worker.signal(signal.SIGSTOP)
    threading.Event().wait(3.0)
    for worker in workers:
        worker.signal(signal.SIGCONT)
    for worker in workers:
        worker.tell("word 2")
    for worker in workers:
        assert worker.expect("word") is None


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2)])
def test_who_leaves_is_no_loss_to_the_others(start, order):
    workers = met(3, start)
    for index in order:
        workers[index].tell("leave")
        assert workers[index].expect("left") is None
    for worker in workers:
        worker.tell("word 0.5")
        assert worker.expect("word") is None


@pytest.mark.parametrize("index", [0, 1])
def test_who_leaves_with_a_reason_is_lost_to_the_others_with_it(start, index):
    workers = met(3, start)
    workers[index].tell("leave DataError: no such file")
    for other in workers:
        if other is not workers[index]:
            assert other.expect("lost") == f"{workers[index].name} ended: DataError: no such file"
    assert workers[index].expect("left") is None


def test_a_lost_worker_counts_once_and_first(start):
    workers = met(3, start)
    workers[1].signal(signal.SIGKILL)
    said = [workers[0].expect("lost"), workers[2].expect("lost")]
    workers[0].tell("leave PeerLostError: worker 1 was killed")
    workers[2].tell("leave PeerLostError: worker 1 was killed")
    assert [workers[0].expect("left"), workers[2].expect("left")] == said
    assert workers[0].says_nothing()
    assert workers[2].says_nothing()


def test_of_two_workers_that_are_lost_at_once_all_name_the_same(start):
    workers = met(4, start)
    workers[0].signal(signal.SIGSTOP)
    for victim in workers[1:3]:
        victim.signal(signal.SIGKILL)
        victim.exit_code()
    workers[0].signal(signal.SIGCONT)
    assert workers[0].expect("lost") == workers[3].expect("lost")


def test_a_word_that_comes_is_waited_for(start):
    chief, other = met(2, start)
    chief.tell(f"word {LONG}")
    other.tell("leave it broke")
    assert {tuple(chief.events.get(timeout=LONG)) for _ in range(2)} == {
        (event, f"{other.name} ended: it broke") for event in ("lost", "word")
    }


def test_threads_do_not_keep_a_process_alive(start):
    chief, other = met(2, start)
    other.tell("exit")
    assert other.exit_code() == 0
    assert "its connection closed" in chief.expect("lost")
    chief.tell("exit")
    assert chief.exit_code() == 0


def test_who_was_never_watched_can_leave():
    workers = tuple(addresses(2))
    found: list[Peers] = []
    chief = threading.Thread(
        target=lambda: found.append(Peers.meet(Cluster(workers, 0), about={}, deadline=LONG)), daemon=True
    )
    chief.start()
    other = Peers.meet(Cluster(workers, 1), about={}, deadline=LONG)
    chief.join(LONG)
    known = threading.Event()
    found[0].watch(timeout=LONG, on_lost=lambda sentence: known.set())
    other.leave("it has no data")
    other.leave("and says so twice")
    assert known.wait(LONG)
    assert found[0].lost == f"worker 1 ({workers[1]}) ended: it has no data"
    found[0].leave()


def test_a_lost_worker_is_an_error_of_its_own_exit_code():
    with pytest.raises(PeerLostError, match="didn't come within 0 s"):
        Peers.meet(Cluster(tuple(addresses(2)), 0), about={}, deadline=0.0)
