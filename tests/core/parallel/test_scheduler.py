"""The step scheduler hands bundles of steps to simulated workers, and repeats lost ones."""

import threading
from types import SimpleNamespace

import pytest
import tensorflow as tf

from core.errors import PeerLostError
from core.parallel.parameter_server import scheduler
from core.parallel.parameter_server.scheduler import AHEAD, MOST, Handout
from core.parallel.parameter_server.state import NOBODY, WINDOW

WORKERS = 2


class Played:
    """Workers that take a bundle on command."""

    def __init__(self, *, overdue=1e9, meeting_deadline=1e9):
        self.waiting = []  # bundles: the first step, how many steps, the event that they are done
        self.pushing, self.error = NOBODY, None
        patience = {"overdue": overdue, "meeting_deadline": meeting_deadline}
        strategy = SimpleNamespace(workers=WORKERS, coordinator=self, **patience)
        self.handout = Handout(strategy, "take", lambda: tf.constant(self.pushing, tf.int64))

    def schedule(self, take, args):
        batches, first = args
        done = threading.Event()
        self.waiting.append((int(first), batches, done))
        return SimpleNamespace(get=done.wait)

    def done(self):
        if self.error:
            raise self.error

    def hand_out(self, begin, end):
        self.handout.hand_out(begin, end, lambda first, last: last - first)

    def take(self, place=0):
        first, steps, done = self.waiting.pop(place)
        done.set()
        return list(range(first, first + steps))


@pytest.fixture
def alongside():
    """Runs a function in another thread, which must have ended at the end."""
    threads = []

    def start(fn, *args):
        threads.append(threading.Thread(target=fn, args=args, daemon=True))
        threads[-1].start()
        return threads[-1]

    yield start
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()


def test_few_bundles_are_out_at_a_time_and_each_step_is_in_one(alongside):
    played, taken = Played(), []
    chief = alongside(lambda: (played.hand_out(0, 300), played.handout.settle()))
    while chief.is_alive():
        assert len(played.waiting) <= AHEAD * WORKERS
        if played.waiting:
            taken += played.take()
    assert taken == list(range(300))


def test_quick_steps_come_in_bundles_and_slow_ones_alone(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(scheduler, "time", SimpleNamespace(monotonic=lambda: now[0]))
    played, found = Played(), []
    for begin, seconds in enumerate([1e-9] * 7 + [0.003, 0.3, 0.3]):  # of a step
        played.hand_out(MOST * begin, MOST * begin + played.handout.size)
        found.append(len(played.take()))
        now[0] += seconds * found[-1]
        played.handout.settle()
    assert found == [1, 2, 4, 8, 16, 32, MOST, MOST, 33, 1]


def test_no_step_is_handed_out_whose_place_in_the_books_an_older_one_needs(alongside):
    played, taken = Played(), [0]
    chief = alongside(lambda: (played.hand_out(0, 2 * WINDOW), played.handout.settle()))
    while taken[-1] + MOST < WINDOW - 1:  # all but the first
        if len(played.waiting) > 1:
            taken += played.take(1)
        else:
            chief.join(0.001)
    chief.join(0.05)
    assert all(first + steps <= WINDOW for first, steps, _ in played.waiting)
    while chief.is_alive():
        if played.waiting:
            taken += played.take()
        else:
            chief.join(0.001)
    assert sorted(taken[1:]) == list(range(2 * WINDOW))


def test_bundle_that_is_overdue_is_handed_out_again_and_is_done_once_either_is(alongside):
    played = Played(overdue=0.2)
    chief = alongside(lambda: (played.hand_out(0, 1), played.handout.settle()))
    while len(played.waiting) < 2:
        assert chief.is_alive()
    assert played.take(1) == [0]
    chief.join(60)
    assert not chief.is_alive()
    assert played.take() == [0]  # the first comes late
    played.hand_out(1, 2)
    assert played.take(-1) == [1]
    played.handout.settle()


def test_a_bundle_that_waits_behind_others_is_not_overdue(alongside, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(scheduler, "time", SimpleNamespace(monotonic=lambda: now[0]))
    played = Played(overdue=10.0)
    chief = alongside(lambda: (played.hand_out(0, 3), played.handout.settle()))
    while len(played.waiting) < 3:
        assert chief.is_alive()
    now[0] = 9.0
    assert played.take() == [0]  # the third begins
    while len(played.handout._out) == 3:
        assert chief.is_alive()
    now[0] = 11.0
    while len(played.waiting) < 3:
        assert chief.is_alive()
    chief.join(0.5)  # some looks
    assert [first for first, _, _ in played.waiting] == [1, 2, 1]
    now[0] = 12.0
    while played.waiting:
        played.take()


def test_a_push_that_broke_off_ends_the_run():
    played = Played()
    played.hand_out(6, 7)
    played.take()
    played.pushing = 6
    with pytest.raises(PeerLostError, match="amid its push of step 6"):
        played.handout.settle()


def test_errors_of_a_step_are_raised():
    played = Played()
    played.hand_out(0, 1)
    played.error = tf.errors.InvalidArgumentError(None, None, "no")
    with pytest.raises(tf.errors.InvalidArgumentError):
        played.handout.settle()


@pytest.mark.parametrize(
    ("missing", "deadline"), [([], 0.0), (["worker 1"], 1e9)], ids=["all are here", "one is missing for a moment"]
)
def test_a_step_may_take_its_time(missing, deadline, monkeypatch, alongside):
    monkeypatch.setattr(scheduler, "missing_workers", lambda: missing)
    played = Played(meeting_deadline=deadline)
    chief = alongside(lambda: (played.hand_out(0, 1), played.handout.settle()))
    chief.join(0.3)
    assert played.take() == [0]
    chief.join(60)
    assert not chief.is_alive()


def test_no_step_for_too_long_while_a_worker_is_missing_ends_the_run(monkeypatch):
    monkeypatch.setattr(scheduler, "missing_workers", lambda: ["worker 1 (a:1)"])
    played = Played(meeting_deadline=0.0)
    played.hand_out(0, 1)
    with pytest.raises(PeerLostError, match=r"no step was done for 0 s .*, while worker 1 \(a:1\) didn't return"):
        played.handout.settle()
