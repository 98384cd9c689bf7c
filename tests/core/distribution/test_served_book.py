"""A push writes each step once, from weights that are recent enough, and never after an error."""

import pytest
import tensorflow as tf

from core.distribution.served_book import NOBODY, WINDOW, Book


class Pushes:
    """Pushes of the updates `net` and `late`."""

    def __init__(self, max_staleness=None):
        self.bad_step = tf.Variable(NOBODY, dtype=tf.int64)
        self.sums = {name: {"loss": tf.Variable(0.0)} for name in ("net", "late")}
        self.book = Book(["net", "late"], self.bad_step, self.sums, server="CPU:0", max_staleness=max_staleness)
        self.weight, self.ages = tf.Variable(0.0), []

    def push(self, step, *, seen=0, loss=1.0, healthy=True, phase="net", write=None):
        """Returns whether the step may go on."""

        def add(take, age):
            self.weight.assign_add(tf.cast(take, tf.float32))
            return tf.math.is_finite(loss), {"loss": tf.constant(loss)}

        step, seen = tf.constant(step, tf.int64), tf.constant(seen, tf.int64)
        return bool(self.book.enter(phase, step, seen, tf.constant(healthy), write or add))


def test_a_step_counts_once_however_often_it_is_pushed():
    pushes = Pushes()
    assert [pushes.push(step) for step in (1, 1, WINDOW - 1, WINDOW - 1)] == [
        True
    ] * 4  # what is done doesn't stop the rest
    assert (float(pushes.weight), float(pushes.sums["net"]["loss"]), int(pushes.book.clocks["net"])) == (2.0, 2.0, 2)


def test_a_push_that_comes_after_its_place_was_taken_by_a_later_step_is_refused():
    pushes = Pushes()
    pushes.push(4096 + 7)
    assert pushes.push(7)
    assert float(pushes.weight) == 1.0


def test_each_update_of_a_step_counts_for_itself():
    pushes = Pushes()
    assert [pushes.push(3, phase=phase) for phase in ("net", "late", "late")] == [True] * 3
    assert float(pushes.weight) == 2.0
    assert {name: int(clock) for name, clock in pushes.book.clocks.items()} == {"net": 1, "late": 1}


def test_too_old_a_gradient_begins_again():
    pushes = Pushes(max_staleness=1)
    pushes.push(0)
    assert pushes.push(1, seen=0)
    assert not pushes.push(2, seen=0)
    assert not pushes.book.over()  # so it is taken again
    assert pushes.push(0, seen=-5)  # it is done: its age is nobody's business
    assert pushes.book.figures() == {"staleness": 0.5, "staleness_max": 1.0, "refused": 1.0}
    assert pushes.book.figures() == {"staleness": 0.0, "staleness_max": 0.0, "refused": 0.0}
    assert float(pushes.weight) == 2.0


def test_after_a_step_that_is_not_finite_nothing_is_written():
    pushes = Pushes()
    assert not pushes.push(5, loss=float("nan"))
    assert pushes.book.over()
    assert not pushes.push(6)
    assert (int(pushes.bad_step), int(pushes.book.pushing)) == (5, NOBODY)
    assert float(pushes.sums["net"]["loss"]) == 0.0


def test_a_phase_behind_one_that_was_refused_is_refused():
    pushes = Pushes()
    assert not pushes.push(5, healthy=False)
    assert float(pushes.weight) == 0.0


def test_a_push_that_breaks_off_is_seen_and_the_last():
    pushes = Pushes()

    def dies(take, age):
        with tf.control_dependencies([tf.debugging.Assert(~take, ["lost"])]):
            return tf.constant(True), {"loss": tf.constant(0.0)}

    with pytest.raises(tf.errors.InvalidArgumentError):
        pushes.push(8, write=dies)
    assert pushes.book.over()
    assert not pushes.push(9)
    assert (int(pushes.bad_step), int(pushes.book.pushing)) == (NOBODY, 8)
    assert float(pushes.weight) == 0.0
