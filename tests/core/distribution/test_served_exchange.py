"""Two workers at one server, played by threads: each of them reads and writes all weights at once, or not at all."""

from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import tensorflow as tf

from core.distribution.served_book import Book
from core.distribution.served_exchange import ServedExchange
from core.distribution.served_variable import ServedVariable

SERVER = "/job:localhost/replica:0/task:0/device:CPU:0"
STEPS = 100


def test_nobody_reads_or_writes_while_another_writes():
    extended = SimpleNamespace(worker_devices=(SERVER,))
    strategy = SimpleNamespace(num_replicas_in_sync=1, extended=extended, divide_by_staleness=False)
    exchange = ServedExchange(strategy)
    a, b = (ServedVariable(0.0, strategy=strategy, server=SERVER, name=name, trainable=True) for name in "ab")
    figures, large = {"loss": tf.Variable(0.0)}, tf.Variable(tf.ones([256, 256]))
    bad_step = tf.Variable(-1, dtype=tf.int64)
    exchange.book = Book(["net"], bad_step, {"net": figures}, server=SERVER, max_staleness=None)

    def later(x):
        """Returns `x` a while after it is there."""
        with tf.control_dependencies([x]):
            return x + 0.0 * tf.reduce_sum(tf.matmul(large.read_value(), large.read_value()))

    def write(gradients, values, apply_if):
        written = [v.assign(later(v.read_value()) + gradients[v.name[0]]) for v in (a, b)]  # one after the other
        with tf.control_dependencies(written):
            return tf.constant(True), dict(values)

    def take(step):
        """Adds one to both weights; returns what they were when they were pulled, and whether it was counted."""
        exchange.begin()
        exchange.step = step
        with exchange.taking_steps([a, b]):
            exchange.refresh()
            pulled = (a.read_value(), b.read_value())
            gradients, parameters = dict.fromkeys("ab", tf.constant(1.0)), {"a": a, "b": b}
            values, healthy = {"loss": tf.constant(1.0)}, tf.constant(True)
            well, _ = exchange.at_variables(write, gradients, values, healthy, phase="net", parameters=parameters)
        return *pulled, well

    def work(first):
        spec = tf.TensorSpec([], tf.int64)
        worker = tf.function(take, input_signature=(spec,), autograph=False).get_concrete_function()
        return lambda: [worker(tf.constant(step, tf.int64)) for step in range(first, STEPS, 2)]

    workers = [work(0), work(1)]  # a trace each, as each has copies of its own
    with ThreadPoolExecutor() as pool:
        found = [taken for each in pool.map(lambda worker: worker(), workers) for taken in each]
    assert all(bool(well) for *_, well in found)
    assert all(float(x) == float(y) for x, y, _ in found)
    assert (float(a), float(b), float(figures["loss"])) == (STEPS, STEPS, STEPS)
    assert exchange.book.figures()["staleness"] > 0.0  # the two did work side by side
