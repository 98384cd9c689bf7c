"""Parameter servers refuse wrong settings, hold each variable once, and write each step once and atomically."""

import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
import tensorflow as tf

from core.errors import ConfigurationError
from core.optimizers import Optimizer, adam
from core.parallel.parameter_server.exchange import ServedExchange
from core.parallel.parameter_server.state import NOBODY, WINDOW, Book
from core.parallel.parameter_server.strategy import ServedStrategy, parameter_server
from core.parallel.parameter_server.variable import ServedVariable, at_worker, copies_of
from core.testing import on_virtual_cpus


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"max_staleness": -1}, "`parameter_server.max_staleness` is -1"),
        ({"max_staleness": 1.0}, "`parameter_server.max_staleness` is 1.0"),
        ({"max_staleness": False}, "`parameter_server.max_staleness` is False"),
        ({"overdue": 0.0}, "`parameter_server.overdue` is 0.0"),
        ({"overdue": None}, "`parameter_server.overdue` is None"),
        ({"meeting_deadline": float("nan")}, "`parameter_server.meeting_deadline` is nan"),
    ],
)
def test_parameter_server_refuses_wrong_settings(arguments, says):
    with pytest.raises(ConfigurationError, match=says):
        parameter_server(**arguments)


def test_without_servers_it_says_how_to_start_them(monkeypatch):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    with pytest.raises(ConfigurationError, match=r"python -m trainers.launch --workers=2 --ps=1"):
        parameter_server()


def test_each_variable_is_on_the_emptiest_server_with_its_slots():
    servers = on_virtual_cpus(2).extended.worker_devices
    strategy = SimpleNamespace(_bytes=dict.fromkeys(servers, 0))
    with ServedStrategy.scope(strategy):
        parameters = {str(i): tf.Variable(tf.zeros([size])) for i, size in enumerate([6, 3, 2, 2, 4])}
        optimizer = Optimizer(adam(0.1), parameters)
    assert [servers.index(variable.server) for variable in parameters.values()] == [0, 1, 1, 1, 0]
    for slots in optimizer.slots.values():
        assert {path: slot.server for path, slot in slots.items()} == {k: v.server for k, v in parameters.items()}


class Pushes:
    """Pushes of the updates `net` and `late`."""

    def __init__(self, max_staleness=None):
        self.bad_step = tf.Variable(NOBODY, dtype=tf.int64)
        self.sums = {name: {"loss": tf.Variable(0.0)} for name in ("net", "late")}
        self.book = Book(["net", "late"], self.bad_step, self.sums, server="CPU:0", max_staleness=max_staleness)
        self.weight, self.ages = tf.Variable(0.0), []

    def push(self, step, *, seen=0, loss=1.0, healthy=True, phase="net", write=None):
        """Returns whether the step may continue."""

        def add(take, age):
            self.weight.assign_add(tf.cast(take, tf.float32))
            return tf.math.is_finite(loss), {"loss": tf.constant(loss)}

        step, seen = tf.constant(step, tf.int64), tf.constant(seen, tf.int64)
        return bool(self.book.enter(phase, step, seen, tf.constant(healthy), write or add))


def test_a_step_counts_once_however_often_it_is_pushed():
    pushes = Pushes()
    assert [pushes.push(step) for step in (1, 1, WINDOW - 1, WINDOW - 1)] == [
        True
    ] * 4  # completed work doesn't stop the rest
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
    assert pushes.push(0, seen=-5)  # it is done: its age doesn't matter
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


SERVER = "/job:localhost/replica:0/task:0/device:CPU:0"
STEPS = 100


class Adding:
    """A server of two weights, and steps that add one to both."""

    def __init__(self, *, divide=False):
        extended = SimpleNamespace(worker_devices=(SERVER,))
        strategy = SimpleNamespace(num_replicas_in_sync=1, extended=extended, divide_by_staleness=divide)
        self.weights = {
            name: ServedVariable(0.0, strategy=strategy, server=SERVER, name=name, trainable=True) for name in "ab"
        }
        self.loss, self._large = tf.Variable(0.0), tf.Variable(tf.ones([256, 256]))
        bad_step, sums = tf.Variable(NOBODY, dtype=tf.int64), {"net": {"loss": self.loss}}
        self.computes = lambda step: True  # runs between a worker's pull and its push
        self.exchange = ServedExchange(strategy)
        self.book = Book(["net"], bad_step, sums, server=SERVER, max_staleness=None)

    def worker(self):
        """Returns a function that takes a step at one worker, with a separate trace and separate copies."""
        number = tf.TensorSpec([], tf.int64)
        return tf.function(self._take, input_signature=(number, number), autograph=False).get_concrete_function()

    def _take(self, step, others):
        """Returns the pulled weights, and whether the step was counted.

        Before its push so many updates of `others` are counted.
        """
        self.exchange.begin(step)
        with self.exchange.taking_steps(list(self.weights.values()), self.book):
            self.exchange.refresh()
            pulled = [weight.read_value() for weight in self.weights.values()]
            self.book.clocks["net"].assign_add(others)
            with tf.control_dependencies(pulled):
                computed = tf.ensure_shape(tf.numpy_function(self.computes, [step], tf.bool), [])
            gradients = dict.fromkeys(self.weights, tf.cast(computed, tf.float32))
            well, _ = self.exchange.at_variables(
                self._write, gradients, {"loss": pulled[0] * 0.0 + 1.0}, tf.constant(True),
                phase="net", parameters=self.weights,
            )  # fmt: skip
        return *pulled, well

    def _write(self, gradients, values, apply_if):
        written = [weight.assign(self._later(weight) + gradients[name]) for name, weight in self.weights.items()]
        with tf.control_dependencies(written):
            return tf.constant(True), dict(values)

    def _later(self, weight):
        """Reads a weight slowly."""
        with tf.control_dependencies([x := weight.read_value()]):
            return x + 0.0 * tf.reduce_sum(tf.matmul(self._large.read_value(), self._large.read_value()))


def number(*values):
    return [tf.constant(value, tf.int64) for value in values]


@pytest.fixture
def adding():
    return Adding()


@pytest.mark.long
def test_no_worker_reads_or_writes_while_another_writes(adding):
    both = threading.Barrier(2, timeout=60)
    adding.computes = lambda step: step >= 2 or both.wait() >= 0  # the first step of each, while the other does
    workers = [adding.worker(), adding.worker()]

    def work(first):
        return [workers[first](*number(step, 0)) for step in range(first, STEPS, 2)]

    with ThreadPoolExecutor() as pool:
        found = [taken for each in pool.map(work, range(2)) for taken in each]
    assert all(bool(well) for *_, well in found)
    assert all(float(a) == float(b) for a, b, _ in found)
    assert [float(x) for x in (*adding.weights.values(), adding.loss)] == [STEPS] * 3
    assert adding.book.figures()["staleness"] > 0.0


def test_weights_travel_as_one_message_and_gradients_with_figures_as_another(adding):
    operations = adding.worker().graph.get_operations()
    pull, _ = [op for op in operations if op.type == "StatefulPartitionedCall"]
    assert [x.dtype for x in pull.outputs].count(tf.float32) == 1
    at_server = [x for op in operations if op.device == SERVER for x in op.inputs if x.op.device != SERVER]
    assert [x.dtype for x in at_server].count(tf.float32) == 1


def test_a_gradient_is_divided_by_the_updates_since_its_weights_were_read():
    adding, moved = Adding(divide=True), []
    take = adding.worker()
    for step, others in enumerate([0, 1, 2, 4]):
        before = float(adding.weights["a"])
        take(*number(step, others))
        moved.append(float(adding.weights["a"]) - before)
    assert moved == [1.0, 1.0, 0.5, 0.25]


def test_the_phase_behind_a_push_reads_weights_that_are_pulled_anew(adding):
    exchange, weight = adding.exchange, adding.weights["a"]

    @tf.function(autograph=False)
    def step():
        exchange.begin(tf.constant(0, tf.int64))
        with exchange.taking_steps(list(adding.weights.values()), adding.book):
            exchange.refresh()
            gradients = dict.fromkeys(adding.weights, weight.read_value() + 1.0)
            exchange.at_variables(
                adding._write, gradients, {"loss": tf.constant(0.0)}, tf.constant(True),
                phase="net", parameters=adding.weights,
            )  # fmt: skip
            exchange.refresh()
            return weight.read_value()

    assert float(step()) == 1.0


def test_variable_outside_the_task_is_named_where_a_step_reads_it():
    known, other = (
        ServedVariable(value, strategy=None, server=SERVER, name=name, trainable=True)
        for value, name in ((1.0, "known"), (tf.zeros([4]), "p/part_0"))
    )

    @tf.function(autograph=False)
    def step():
        with at_worker(copies_of([known])):
            known.assign(2.0)
            return known + other[0]

    with pytest.raises(
        ConfigurationError, match=r"reads the variable `p/part_0:0`.*isn't part of the task.*partitioner"
    ):
        step()
    assert float(known) == 1.0
