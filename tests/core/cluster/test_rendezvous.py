"""Workers meet, or report why they can't: real processes on this machine."""

import signal
import socket
import struct

import pytest
from peer_lab import LONG, addresses, connected, hear, introduce, is_shown_out, met, packed, started_in

from core.cluster.heartbeat import Heartbeat
from core.cluster.topology import Cluster
from core.errors import PeerLostError

pytestmark = pytest.mark.waits


def test_single_worker_needs_no_rendezvous_and_no_port():
    (address,) = addresses(1)
    peers = Heartbeat.meet(Cluster((address,), 0), about={}, deadline=0.0)
    peers.watch(timeout=0.01, on_lost=pytest.fail)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", int(address.split(":")[1])))
    assert peers.wait_for_word(0.1) is None
    peers.leave()
    assert peers.lost is None


@pytest.mark.parametrize("order", [(1, 0), (2, 0, 1)])
def test_workers_meet_in_any_order_of_start(start, order):
    workers = started_in(order, start)
    for worker in workers:
        worker.expect("met")


def test_workers_meet_where_the_system_prefers_another_name_for_this_machine(start):
    workers = [address.replace("127.0.0.1", "localhost") for address in addresses(2)]
    found = [start(workers, 1), start(workers, 0)]
    for worker in found:
        worker.expect("met")


def test_no_worker_continues_before_the_last_has_come(start):
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
    chief = start(workers, 0, deadline=4.0, token="secret")
    connected(workers[0]).close()
    hasty = start(workers, 1, deadline=1.5, token="secret")  # it has reached the chief
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
        Heartbeat.meet(Cluster(tuple(addresses(2)), 1), about={}, deadline=0.3)


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


def test_a_second_chief_is_refused_and_so_is_the_first(start):
    workers = addresses(2)
    chief = start(workers, 0)
    connected(workers[0]).close()
    second = start(workers, 0)
    said = {worker.expect("ConfigurationError") for worker in (chief, second)}
    (text,) = said
    assert f"two processes are worker 0 ({workers[0]})" in text
    assert all(f"process {twin.process.pid} on " in text for twin in (chief, second))


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


NONSENSE = [
    b"GET / HTTP/1.1\r\n\r\n",
    b"TAPE" + struct.pack("!I", 1 << 31) + b"x" * 1000,
    b"TAPE" + struct.pack("!I", 5) + b"{{{{{",
    packed([1, 2]),
    packed({"hello": 1}),
    packed({"hello": {}, "answer": [], "proof": {}}),
    [1, 2],
    {"index": 1},
    {"index": True, "workers": [], "about": {}, "who": ""},
    {"index": 1, "workers": "a:1", "about": {}, "who": ""},
]


def test_stranger_that_sends_garbage_is_disconnected_and_disturbs_no_worker(start):
    workers = addresses(2)
    chief = start(workers, 0)
    for nonsense in NONSENSE:
        with connected(workers[0]) as stranger:
            if isinstance(nonsense, bytes):
                stranger.sendall(nonsense)
            else:  # with all the courtesy of a worker
                introduce(stranger, nonsense)
            assert is_shown_out(stranger), nonsense
        assert chief.says_nothing(), nonsense
    other = start(workers, 1)
    chief.expect("met")
    other.expect("met")


def test_silent_stranger_delays_no_worker(start):
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
        introduce(first, hello)
        assert "welcome" in hear(first)
        assert hear(first) == {"wait": True}
    for worker in (start(workers, 1), start(workers, 2), chief):
        worker.expect("met")


def test_waiting_for_others_can_be_interrupted(start):
    for worker in [start(addresses(2), index) for index in range(2)]:
        worker.signal(signal.SIGINT)
        worker.expect("interrupted")
        assert worker.exit_code() == 130


def test_the_port_can_be_listened_at_again_while_the_connections_stay_open(start):
    chief, other = met(2, start)
    chief.tell("listen")
    chief.expect("listened")
    other.tell("leave for the test")
    assert chief.expect("lost") == f"{other.name} ended: for the test"


def test_second_chief_finds_the_port_taken(start):
    workers = addresses(2)
    with socket.create_server(("127.0.0.1", int(workers[0].split(":")[1]))):
        assert "something else has this port" in start(workers, 0).expect("ConfigurationError")
