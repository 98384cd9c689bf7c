"""Workers notice each other's end: real processes, really killed and stopped."""

import json
import signal
import threading
import time

import pytest
from peer_lab import LONG, addresses, met

from core.cluster.heartbeat import Heartbeat
from core.cluster.topology import Cluster
from core.errors import PeerLostError

pytestmark = pytest.mark.waits


@pytest.mark.parametrize("victim", [0, 1])
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
def test_short_stop_is_no_loss_and_blames_no_worker(start, victim):
    workers = met(3, start, timeout=5.0)
    workers[victim].signal(signal.SIGSTOP)
    workers[2].tell("word 0.5")
    assert workers[2].expect("word") is None
    workers[victim].signal(signal.SIGCONT)
    workers[victim].tell("word 0.5")
    assert workers[victim].expect("word") is None
    assert all(worker.says_nothing() for worker in workers)


def test_all_stopped_and_continued_together_are_no_loss(start):
    workers = met(2, start, timeout=2.0)
    for worker in workers:
        worker.signal(signal.SIGSTOP)
    threading.Event().wait(3.0)  # longer than the timeout
    for worker in workers:
        worker.signal(signal.SIGCONT)
    for worker in workers:
        worker.tell("word 1")
    for worker in workers:
        assert worker.expect("word") is None


def test_each_worker_learns_which_others_are_in_another_section(start):
    """The chief hears from all workers; the others learn of each other from the chief."""
    workers = met(3, start)

    def elsewhere(asker):
        asker.tell("elsewhere training")
        return json.loads(asker.expect("elsewhere"))

    for worker in workers:
        assert elsewhere(worker) == {}
        worker.tell("do training")
        worker.expect("doing")
    workers[2].tell("do the hook `Mine`")
    workers[2].expect("doing")
    until = time.monotonic() + LONG
    for worker in workers[:2]:
        while (found := elsewhere(worker)) == {} and time.monotonic() < until:
            time.sleep(0.1)
        assert found == {workers[2].name: "the hook `Mine`"}
    assert elsewhere(workers[2]) == {}


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0)])
def test_worker_that_leaves_is_no_loss_to_the_others(start, order):
    workers = met(3, start)
    for index in order:
        workers[index].tell("leave")
        assert workers[index].expect("left") is None
    for worker in workers:
        worker.tell("word 0.5")
        assert worker.expect("word") is None


@pytest.mark.parametrize("index", [0, 1])
def test_worker_that_leaves_with_a_reason_is_lost_to_the_others_with_it(start, index):
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


def test_survivors_of_two_losses_at_once_name_the_same_worker(start):
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


def test_worker_that_was_never_watched_can_leave():
    workers = tuple(addresses(2))
    found: list[Heartbeat] = []
    chief = threading.Thread(
        target=lambda: found.append(Heartbeat.meet(Cluster(workers, 0), about={}, deadline=LONG)), daemon=True
    )
    chief.start()
    other = Heartbeat.meet(Cluster(workers, 1), about={}, deadline=LONG)
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
        Heartbeat.meet(Cluster(tuple(addresses(2)), 0), about={}, deadline=0.0)
