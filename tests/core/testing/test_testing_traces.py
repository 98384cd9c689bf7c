"""`assert_traces_once` names the argument that changed, and how."""

import contextlib
from typing import NamedTuple

import numpy as np
import pytest
import tensorflow as tf

from core.testing import assert_traces_once

X = tf.zeros([4, 3])


class Pair(NamedTuple):
    x: object
    y: object


def traced():
    return tf.function(lambda batch, n=1, *rest: tf.nest.flatten((batch, n, *rest))[0], autograph=False)


@pytest.mark.parametrize(
    "calls",
    [
        [(X,), (X + 1.0,), (X * 2.0,)],
        [(X, 1), (X, 1)],
        [({"x": X}, tf.constant(1)), ({"x": X}, tf.constant(2))],
        [(np.zeros([2]),), (np.ones([2]),)],
        [(Pair(X, (X, "text")),), (Pair(X, (X, "text")),)],
    ],
)
def test_functions_traced_once_pass(calls):
    assert_traces_once(traced(), *calls)


@pytest.mark.parametrize(
    ("then", "says"),
    [
        ((X[1:],), r"call 1 of `<lambda>` traced it anew: `batch` was a tensor of float32 \[4, 3\] in call 0 and is a "
                   r"tensor of float32 \[3, 3\]. A trace is for one dtype and shape"),
        ((tf.zeros([4, 3], tf.float64),), r"`batch` was .* and is a tensor of float64 \[4, 3\]"),
        ((tf.Variable(X),), r"`batch` was a tensor .* is a variable of float32"),
        ((X, 2), "call 0 has 1 arguments and call 1 has 2"),
        (({"x": X},), r"`batch` was made of `batch` in call 0 and is made of `batch\['x'\]`. Structures"),
    ],
)  # fmt: skip
def test_a_first_argument_that_changed_is_named(then, says):
    with pytest.raises(AssertionError, match=says):
        assert_traces_once(traced(), (X,), then)


@pytest.mark.parametrize(
    ("first", "then", "says"),
    [
        (1, 2, r"`n` was 1 in call 0 and is 2. A Python value is part of the trace: .*tf.constant"),
        ("a", "b", "`n` was 'a' in call 0 and is 'b'"),
        (1, tf.constant(1), r"`n` was 1 in call 0 and is a tensor of int32 \[\]"),
        ([X, {"k": X}], [X, {"k": X[0]}], r"`n\[1\]\['k'\]` was a tensor of float32 \[4, 3\]"),
        (Pair(1, X), Pair(2, X), "`n.x` was 1 in call 0 and is 2"),
        (Pair(1, [X]), Pair(1, [X, X]), r"`n` was made of `n.x`, `n.y\[0\]` in call 0"),
    ],
)
def test_any_other_argument_that_changed_is_named(first, then, says):
    with pytest.raises(AssertionError, match=says):
        assert_traces_once(traced(), (X, first), (X, then))


def test_arguments_beyond_the_named_ones_have_their_number():
    with pytest.raises(AssertionError, match=r"`rest\[1\]` was 5"):
        assert_traces_once(traced(), (X, 1, X, 5), (X, 1, X, 6))


def test_the_call_that_traced_is_named_and_a_method_works():
    class Net(tf.Module):
        @tf.function(autograph=False)
        def step(self, x):
            return x + 1.0

    net = Net()
    assert_traces_once(net.step, (X,), (X + 1.0,))
    with pytest.raises(AssertionError, match=r"call 2 of `step` traced it anew: `x` was .*\[2, 3\]"):
        assert_traces_once(net.step, (X,), (X,), (X[:2],))


def test_a_reason_outside_the_arguments_is_hinted_at():
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"], tf.distribute.ReductionToOneDevice())
    function = traced()

    def call(x):  # stands for a `tf.function` that enters another scope on every other call
        with strategy.scope() if function.experimental_get_tracing_count() else contextlib.nullcontext():
            return function(x)

    call.experimental_get_tracing_count = function.experimental_get_tracing_count
    call.python_function = call
    with pytest.raises(AssertionError, match=r"no argument has another dtype, shape or value\. Look for what it reads"):
        assert_traces_once(call, (X,), (X,))


def test_calls_that_can_t_be_judged_are_refused():
    for says, function, calls in [
        ("which isn't a `tf.function`", len, [(X,), (X,)]),
        ("there is 1 call", traced(), [(X,)]),
        (r"call 1 is \w+; give a tuple", traced(), [(X,), X]),
    ]:
        with pytest.raises(AssertionError, match=says):
            assert_traces_once(function, *calls)
