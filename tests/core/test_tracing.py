"""Step functions that need values while TensorFlow traces get an error with a remedy."""

import logging
import traceback

import numpy as np
import pytest
import tensorflow as tf

from core.engine.inspect_phase import describe_loss
from core.optimizers import Optimizer, sgd
from core.task import Loss
from core.tracing import traced_for_each


def branches(x):
    return x + 1.0 if tf.reduce_sum(x) > 0 else x


def repeats(x):
    while tf.reduce_sum(x) > 1.0:
        x = x / 2.0
    return x


def takes_the_largest(x):
    return x + max(tf.reduce_sum(x), 0.0)


def goes_through(x):
    return tf.stack([row * 2.0 for row in x])


def counts(x):
    return x * float(tf.reduce_sum(x))


def goes_so_far(x):
    return x + sum(range(tf.cast(tf.reduce_sum(x), tf.int32)))


def looks(x):
    return x * x.numpy().mean()


def computes_elsewhere(x):
    return x * np.mean(x)


def prints(x):
    return x * len(f"{tf.reduce_sum(x):.3f}")


@pytest.mark.parametrize(
    ("fn", "instead"),
    [
        (branches, "tf.where"),
        (repeats, "tf.while_loop"),
        (takes_the_largest, "tf.where"),
        (goes_through, "tf.unstack"),
        (counts, "Keep it a tensor"),
        (goes_so_far, "Keep it a tensor"),
        (looks, "Keep it a tensor"),
        (computes_elsewhere, "Keep it a tensor"),
        (prints, "Keep it a tensor"),
    ],
)
def test_step_function_that_needs_values_gets_a_remedy(fn, instead):
    def loss(batch, rng):
        return Loss(fn(batch["x"])[:, 0])

    loss({"x": tf.ones([4, 2])}, None)  # eagerly, as in a unit test, there are values
    with pytest.raises(TypeError, match="phase `net`") as caught:
        describe_loss(loss, {"x": tf.TensorSpec([4, 2])}, "net")
    said = str(caught.value)
    assert instead in said
    assert "AutoGraph is off" in said
    assert "decorat" not in said  # which is what TensorFlow advises
    assert any(frame.name == fn.__name__ for frame in traceback.extract_tb(caught.value.__traceback__))


def test_schedule_that_needs_values_gets_the_remedy_too():
    w = tf.Variable([1.0])
    optimizer = Optimizer(sgd(lambda step: 0.1 if step < 10 else 0.01), {"w": w})
    with pytest.raises(TypeError, match=r"a schedule or rule of the optimizer.*tf\.where"):
        tf.function(lambda: optimizer.apply({"w": tf.ones([1])}), autograph=False)()


@pytest.mark.parametrize("fn", [lambda x: x.no_such_thing, lambda x: x + None, lambda x: tf.matmul(x)])
def test_other_mistakes_keep_their_words(fn):
    def loss(batch, rng):
        return Loss(fn(batch["x"])[:, 0])

    with pytest.raises((TypeError, AttributeError, ValueError)) as caught:
        describe_loss(loss, {"x": tf.TensorSpec([4, 2])}, "net")
    assert "AutoGraph" not in str(caught.value)


class Doubling:
    def __init__(self, trace):
        self.traced = trace(self.double)

    def double(self, x):
        return x + x


@pytest.mark.parametrize(("trace", "warns"), [(traced_for_each, False), (tf.function, True)])
def test_traces_for_each_object_warn_of_no_retracing(trace, warns):
    heard = []
    handler = logging.Handler()
    handler.emit = lambda record: heard.append(record.getMessage())
    logging.getLogger("tensorflow").addHandler(handler)
    try:
        for i in range(6):
            assert int(Doubling(trace).traced(tf.constant(i))) == 2 * i
    finally:
        logging.getLogger("tensorflow").removeHandler(handler)
    assert any("triggered tf.function retracing" in text for text in heard) == warns
