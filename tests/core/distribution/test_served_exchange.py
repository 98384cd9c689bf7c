"""Two workers of one server, played by threads, read and write all weights atomically."""

import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
import tensorflow as tf

from core.distribution.served_book import NOBODY, Book
from core.distribution.served_exchange import ServedExchange
from core.distribution.served_variable import ServedVariable, at_worker, copies_of
from core.errors import ConfigurationError

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
        self.computes = lambda step: True  # what a worker does between its pull and its push
        self.exchange = ServedExchange(strategy)
        self.exchange.book = Book(["net"], bad_step, sums, server=SERVER, max_staleness=None)

    def worker(self):
        """Returns what takes a step at one worker: a trace of its own, as each has copies of its own."""
        number = tf.TensorSpec([], tf.int64)
        return tf.function(self._take, input_signature=(number, number), autograph=False).get_concrete_function()

    def _take(self, step, others):
        """Returns what the weights were when they were pulled, and whether the step was counted.

        Before its push so many updates of `others` are counted.
        """
        self.exchange.begin()
        self.exchange.step = step
        with self.exchange.taking_steps(list(self.weights.values())):
            self.exchange.refresh()
            pulled = [weight.read_value() for weight in self.weights.values()]
            self.exchange.book.clocks["net"].assign_add(others)
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
        """Reads a weight, and takes a while for it."""
        with tf.control_dependencies([x := weight.read_value()]):
            return x + 0.0 * tf.reduce_sum(tf.matmul(self._large.read_value(), self._large.read_value()))


def number(*values):
    return [tf.constant(value, tf.int64) for value in values]


@pytest.fixture
def adding():
    return Adding()


def test_nobody_reads_or_writes_while_another_writes(adding):
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
    assert adding.exchange.book.figures()["staleness"] > 0.0


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
        exchange.begin()
        exchange.step = tf.constant(0, tf.int64)
        with exchange.taking_steps(list(adding.weights.values())):
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
