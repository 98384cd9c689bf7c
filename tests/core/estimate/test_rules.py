"""Single operations on sharded rows have the layouts and collectives of the rules."""

import pytest
import tensorflow as tf

from core.estimate import Spread, Taken, laid_out

SUM, GATHER = (Taken("batch", kind, "forward") for kind in ("all-reduce", "all-gather"))
CUT = 2  # the dimension along which `x` of [1, 1, 8, 4] is


def crossing(fn, *dtypes):
    """What crosses in `fn` of `x`, and of numbers that aren't known while tracing."""
    numbers = [tf.TensorSpec([], dtype) for dtype in dtypes]
    traced = tf.function(fn, autograph=False).get_concrete_function(tf.TensorSpec([1, 1, 8, 4]), *numbers)
    found = Spread({"batch": 2}, {}, {})
    found.follow(traced, "batch")
    return dict(found.counts)


@pytest.mark.parametrize(
    "fn",
    [
        lambda x, axis: tf.gather(x, [0], axis=axis),
        lambda x, axis: tf.expand_dims(x, axis),
        lambda x, axis: tf.concat([x, x], axis)[0],
    ],
    ids=["gather", "expand_dims", "concat"],
)
def test_an_axis_that_is_not_known_takes_all_whole(fn):
    assert set(crossing(fn, tf.int32)) == {GATHER}


def test_concat_of_a_partial_sum_is_summed():
    assert crossing(lambda x: tf.concat([tf.zeros([1]), tf.reduce_sum(x)[tf.newaxis]], 0) * 2) == {SUM: 1}


@pytest.mark.parametrize(("axis", "gathered"), [(CUT - 4, {GATHER: 2}), (3, {})])
def test_tensors_are_joined_along_what_is_not_cut(axis, gathered):
    assert crossing(lambda x: tf.concat([x, x * 2], axis) * 2) == gathered


def test_concat_cuts_whole_tensors_at_no_price():
    assert crossing(lambda x: tf.reduce_sum(tf.concat([tf.zeros([1, 1, 8, 1]), x], 3)) * 2) == {SUM: 1}


def test_each_branch_is_followed():
    def chosen(x, i):
        return tf.switch_case(i, [lambda: tf.reduce_sum(x) * 2, lambda: tf.reduce_sum(x, axis=CUT)[0, 0, 0] * 2])

    assert crossing(chosen, tf.int32) == {SUM: 2}


def test_laid_out_tensors_are_gathered_or_cut_at_no_price():
    def laid(*axes):
        return lambda x: laid_out(laid_out(x, axes), ("-", "-", "batch", "-"))

    assert crossing(laid("-", "-", "-", "-")) == {GATHER: 1}
    assert crossing(laid("-", "-", "batch", "-")) == {}
    assert crossing(lambda x: laid_out(tf.reduce_sum(x, axis=CUT), ("-", "-", "batch"))) == {SUM: 1}
