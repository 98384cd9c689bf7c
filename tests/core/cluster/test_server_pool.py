"""A chief meets its server pool, notices losses, and dismisses all; servers notice the chief's end."""

import contextlib
import signal
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from peer_lab import LONG, addresses, connected, is_shown_out, packed

from core.cluster import server_pool as crews
from core.cluster import server_process
from core.cluster.channel import POLL_SECONDS, Channel
from core.cluster.port_check import knock
from core.cluster.rendezvous import ask
from core.cluster.server_pool import Crew, connect_servers
from core.cluster.server_process import Duty
from core.cluster.topology import ServedCluster
from core.errors import ConfigurationError, PeerLostError

pytestmark = pytest.mark.waits

JOBS = ("chief", "ps", "worker", "worker")
CHIEF, PS, WORKER, OTHER = range(4)
SECRET = "the run's own"
SHORT = 0.4  # seconds of a silence that some test has to wait for


class KilledError(Exception):
    """Ends a server as a signal would."""


class Lab:
    """Servers in threads, and a chief for them."""

    def __init__(self, pool):
        self.places, self._pool = tuple(addresses(len(JOBS))), pool
        self.stop, self.kill = ({i: threading.Event() for i in range(len(JOBS))} for _ in range(2))

    def serve(self, index, *, places=None, about="2", token=SECRET, timeout=LONG, deadline=LONG):
        """Starts a server; its future says whether it was dismissed."""

        def told_to_stop():
            if self.kill[index].is_set():
                raise KilledError
            return self.stop[index].is_set()

        def run():
            place = ServedCluster(places or self.places, index, JOBS)
            duty = Duty.awaited(place, about={"tensorflow": about}, deadline=deadline, token=token)
            duty.begin()
            with contextlib.closing(duty):  # as the end of its process does
                return duty.stay(told_to_stop=told_to_stop, timeout=timeout)

        return self._pool.submit(run)

    def serve_all(self):
        return {index: self.serve(index) for index in (PS, WORKER, OTHER)}

    def meet(self, *, deadline=LONG):
        return Crew.meet(self.place, about={"tensorflow": "2"}, deadline=deadline, token=SECRET)

    @property
    def place(self):
        return ServedCluster(self.places, CHIEF, JOBS)


@pytest.fixture
def lab(monkeypatch):
    monkeypatch.setattr(server_process, "ANSWER_SECONDS", SHORT)  # as if the chief ended soon after its servers
    with ThreadPoolExecutor(8) as pool:
        made = Lab(pool)
        yield made
        for event in made.kill.values():
            event.set()


@pytest.fixture
def met(lab):
    """Returns a server pool, and the futures of its servers."""
    ends = lab.serve_all()
    crew = lab.meet()
    yield crew, ends
    crew.leave()


def until(said, capsys):
    """Waits for a line of the chief's."""
    found, end = "", time.monotonic() + LONG
    while said not in found:
        assert time.monotonic() < end, found
        time.sleep(0.05)
        found += capsys.readouterr().out


# --- the meeting ------------------------------------------------------------------------------------------------------


def test_all_meet_and_are_dismissed(met):
    crew, ends = met
    assert not any(end.done() for end in ends.values())
    crew.leave("ConfigurationError: a reason of the chief's own")
    assert [end.result(LONG) for end in ends.values()] == [True] * 3


def test_worker_that_does_not_come_is_named_and_others_are_dismissed(lab):
    ps = lab.serve(PS)
    with pytest.raises(PeerLostError) as caught:
        lab.meet(deadline=1.0)
    assert f"worker 0 ({lab.places[WORKER]}) didn't come within 1 s (Connection refused)" in str(caught.value)
    assert f"worker 1 ({lab.places[OTHER]})" in str(caught.value)
    assert "ps 0" not in str(caught.value)
    assert ps.result(LONG)


def test_worker_that_no_chief_calls_gives_up(lab):
    with pytest.raises(PeerLostError, match=r"the chief .* didn't come within 0.2 s"):
        lab.serve(WORKER, deadline=0.2).result(LONG)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"about": "1"}, "`tensorflow` is 1 for worker 0 .* and 2 for the chief"),
        ({"places": 0}, r"worker 0 .* was given the cluster .*'a:1'.*, the chief"),
    ],
)
def test_worker_that_differs_is_refused_on_both_sides(lab, changes, says):
    if "places" in changes:
        changes = {"places": (*lab.places[:-1], "a:1")}
    worker = lab.serve(WORKER, **changes)
    with pytest.raises(ConfigurationError, match=says):
        lab.meet()
    with pytest.raises(ConfigurationError, match=says):
        worker.result(LONG)


def test_only_holders_of_the_token_are_served(lab):
    lab.serve(PS, token="a guess", deadline=3.0)
    with pytest.raises(PeerLostError, match=r"ps 0 .* knows another `TAPELOOP_TOKEN`, or none"):
        lab.meet(deadline=1.0)


def test_strangers_at_the_port_delay_no_worker(lab):
    ends = lab.serve_all()
    with contextlib.ExitStack() as stack:
        strangers = [stack.enter_context(connected(lab.places[PS])) for _ in range(3)]
        strangers[0].sendall(packed({"hello": {"workers": list(lab.places), "about": {}}, "answer": "", "proof": ""}))
        strangers[1].sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")  # as TensorFlow looks for a server that isn't up yet
        crew = lab.meet()
        assert all(is_shown_out(each) for each in strangers)
    crew.leave()
    assert [end.result(LONG) for end in ends.values()] == [True] * 3


def test_a_port_that_is_taken_is_named(lab):
    host, port = lab.places[PS].split(":")
    with socket.create_server((host, int(port))), pytest.raises(ConfigurationError) as caught:
        lab.serve(PS).result(LONG)
    assert f"ps 0 ({lab.places[PS]}) can't listen (Address already in use)" in str(caught.value)


@pytest.mark.parametrize("config", ["", '{"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 0}}'])
def test_without_servers_the_strategy_says_how_to_start_them(monkeypatch, config):
    monkeypatch.setenv("TF_CONFIG", config)
    with pytest.raises(ConfigurationError, match=r"finds no servers.* trainers.launch --workers=2 --ps=1"):
        connect_servers(1.0)


# --- losses -----------------------------------------------------------------------------------------------------------


def test_a_worker_that_is_lost_may_come_again(met, lab, capsys, monkeypatch):
    broken_off = []
    monkeypatch.setattr(crews, "hang_up", broken_off.append)
    crew, ends = met
    crew.watch(timeout=LONG, on_lost=pytest.fail)
    lab.kill[WORKER].set()
    until("worker 0 (127.0.0.1", capsys)
    assert isinstance(ends[WORKER].exception(LONG), KilledError)
    assert broken_off == [lab.places[WORKER]]
    assert crew.missing() == [f"worker 0 ({lab.places[WORKER]})"]
    lab.kill[WORKER].clear()
    again = lab.serve(WORKER)
    until("is here again", capsys)
    assert not crew.missing()
    crew.leave()
    assert [end.result(LONG) for end in (ends[PS], again, ends[OTHER])] == [True] * 3


def test_without_a_server_the_run_is_over(met, lab):
    crew, _ = met
    lost = []
    crew.watch(timeout=LONG, on_lost=lost.append)
    lab.kill[PS].set()
    assert crew.wait_for_word(LONG).startswith(f"ps 0 ({lab.places[PS]}) was killed")
    crew.leave()
    assert lost == [crew.lost]


def test_without_any_worker_the_run_is_over_after_the_deadline(lab):
    ends = lab.serve_all()
    crew = lab.meet(deadline=2.0)
    crew.watch(timeout=LONG, on_lost=lambda sentence: None)
    lab.kill[WORKER].set()
    assert crew.wait_for_word(SHORT) is None
    lab.kill[OTHER].set()
    assert crew.wait_for_word(LONG) == "all workers are gone, and none has come again within 2 s"
    crew.leave()
    assert ends[PS].result(LONG)


def test_silent_worker_is_lost(lab, capsys):
    """The worker answers and then says nothing, like a stopped process."""
    ends = {index: lab.serve(index) for index in (PS, OTHER)}
    silent = lab._pool.submit(
        Duty.awaited, ServedCluster(lab.places, WORKER, JOBS), about={"tensorflow": "2"}, deadline=LONG, token=SECRET
    )
    threading.Thread(target=lambda: silent.result(LONG).begin(), daemon=True).start()
    crew = lab.meet()
    crew.watch(timeout=2.0, on_lost=pytest.fail)
    until(f"worker 0 ({lab.places[WORKER]}) hasn't been heard of for 2 s: it hangs or is stopped", capsys)
    crew.leave()
    assert all(end.result(LONG) for end in ends.values())


@pytest.mark.parametrize(
    ("closed", "says"), [(True, "its connection closed"), (False, "hasn't been heard of for 0.4 s")]
)
def test_server_notices_that_its_chief_is_gone(lab, closed, says):
    worker = lab.serve(WORKER, timeout=SHORT)
    connected(lab.places[WORKER]).close()  # it listens
    with contextlib.closing(Channel(knock(lab.places[WORKER]))) as chief:
        hello = {"workers": list(lab.places), "about": {"tensorflow": "2"}}
        assert ask(chief, hello, SECRET, time.monotonic() + LONG, LONG) == ""
        if closed:
            chief.close()
        with pytest.raises(PeerLostError, match=rf"the chief .*{says}.*--max_restarts"):
            worker.result(LONG)


# --- who is told to stop ----------------------------------------------------------------------------------------------


def test_idle_worker_with_a_stop_signal_leaves(met, lab, capsys):
    crew, ends = met
    crew.watch(timeout=LONG, on_lost=pytest.fail)
    lab.stop[WORKER].set()
    crew.release()  # perhaps before it has asked
    while not ends[WORKER].done():
        time.sleep(2 * POLL_SECONDS)
        crew.release()
    assert ends[WORKER].result() is False
    until(f"worker 0 ({lab.places[WORKER]}) was told to stop, and has left", capsys)
    assert not ends[OTHER].done()


def test_worker_with_a_stop_signal_finishes_its_step(met, lab):
    _, ends = met
    lab.stop[WORKER].set()
    time.sleep(SHORT)
    assert not ends[WORKER].done()


def test_server_with_a_stop_signal_stops_the_chief(met, lab):
    crew, ends = met
    heard = threading.Event()
    before = signal.signal(signal.SIGTERM, lambda *_: heard.set())
    try:
        lab.stop[PS].set()
        assert heard.wait(LONG)
    finally:
        signal.signal(signal.SIGTERM, before)
    crew.release()
    time.sleep(SHORT)
    assert not ends[PS].done()  # before the chief has saved
