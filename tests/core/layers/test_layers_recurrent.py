"""Recurrent cores: pieces equal the whole, lengths end an example, errors name bad input."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from core.layers import GRU, LSTM, VanillaRNN, unroll
from core.layers.recurrent import Core
from core.random import Rng

RNG = Rng.from_seed(12)


@pytest.mark.parametrize("kind", [VanillaRNN, LSTM, GRU])
@settings(max_examples=4, deadline=None)
@given(st.integers(0, 3), st.integers(1, 5), st.integers(0, 5))
def test_pieces_make_the_whole(kind: type[Core], batch: int, time: int, split: int) -> None:
    core = kind(2, 3, rng=RNG)
    x = RNG.normal([batch, time, 2])
    whole, last = unroll(core, x)
    split = min(split, time)
    first, state = unroll(core, x[:, :split])
    second, end = unroll(core, x[:, split:], state)
    np.testing.assert_allclose(tf.concat([first, second], 1), whole, atol=1e-6)
    ys, state = [], core.initial_state(batch)
    for t in range(time):
        y, state = core(x[:, t], state)
        ys.append(y)
    np.testing.assert_allclose(tf.stack(ys, 1), whole, atol=1e-6)
    for a, b, c in zip(*(tf.nest.flatten(s) for s in (last, end, state)), strict=True):
        np.testing.assert_allclose(b, a, atol=1e-6)
        np.testing.assert_allclose(c, a, atol=1e-6)


def test_inputs_beyond_the_length_do_not_matter() -> None:
    core = LSTM(2, 3, rng=RNG)
    x, lengths = RNG.normal([3, 5, 2]), tf.constant([5, 2, 0])
    padding = tf.sequence_mask(lengths, 5)[..., tf.newaxis]
    with tf.GradientTape() as tape:
        tape.watch(x)
        y, state = unroll(core, x, lengths=lengths)
        loss = tf.reduce_sum(y**2) + tf.reduce_sum(state.cell**2)
    gradient = tape.gradient(loss, x)
    assert not np.any(tf.where(padding, 0.0, y))
    assert not np.any(tf.where(padding, 0.0, gradient))
    other = unroll(core, tf.where(padding, x, 7.0), lengths=lengths)
    for a, b in zip(tf.nest.flatten((y, state)), tf.nest.flatten(other), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.long
@pytest.mark.parametrize("compiled", [False, True])
def test_a_length_out_of_range_found_while_running_is_nan(compiled: bool) -> None:
    core, x = LSTM(2, 3, rng=RNG), RNG.normal([4, 5, 2])
    run = tf.function(lambda lengths: unroll(core, x, lengths=lengths), jit_compile=compiled, autograph=False)
    y, state = run(tf.constant([5, 6, -1, 0], tf.int64))
    for found in (y, state.hidden, state.cell):
        bad = np.isnan(np.reshape(found, [4, -1]))
        np.testing.assert_array_equal(bad.all(1), [False, True, True, False])
        np.testing.assert_array_equal(bad.any(1), [False, True, True, False])


def test_one_length_is_never_that_of_many_examples() -> None:
    core = GRU(2, 3, rng=RNG)
    signature = [tf.TensorSpec([None, 5, 2]), tf.TensorSpec([None], tf.int32)]
    run = tf.function(lambda x, n: unroll(core, x, lengths=n)[0], input_signature=signature, autograph=False)
    assert run(tf.zeros([2, 5, 2]), tf.constant([1, 5])).shape == [2, 5, 3]
    with pytest.raises(tf.errors.InvalidArgumentError):
        run(tf.zeros([2, 5, 2]), tf.constant([1]))


def test_time_may_be_known_only_while_running() -> None:
    core = GRU(2, 3, rng=RNG)
    graph = tf.function(lambda x: unroll(core, x), input_signature=[tf.TensorSpec([None, None, 2])], autograph=False)
    for shape in ([2, 4, 2], [1, 7, 2], [0, 3, 2]):
        x = RNG.normal(shape)
        np.testing.assert_allclose(graph(x)[0], unroll(core, x)[0], atol=1e-6)


def test_an_lstm_begins_with_open_forget_gates() -> None:
    np.testing.assert_array_equal(tf.split(LSTM(2, 3, rng=RNG).b, 4)[1], [1.0, 1.0, 1.0])


def unroll_with(lengths: Any) -> Any:
    return unroll(GRU(2, 3, rng=RNG), tf.zeros([2, 8, 2]), lengths=tf.constant(lengths))


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda: LSTM(0, 3, rng=RNG), "`in_size` is 0"),
        (lambda: unroll(GRU(2, 3, rng=RNG), tf.zeros([4, 2])), r"`GRU` has shape \(4, 2\); .*\[batch, time, in_size\]"),
        (lambda: unroll(GRU(2, 3, rng=RNG), tf.zeros([1, 4, 5])), r"`in_size=2`; make it with `in_size=5`"),
        (lambda: unroll_with([1]), r"`lengths` of `unroll` is int32 of shape \(1,\) .*integers of shape \(2,\)"),
        (
            lambda: unroll(GRU(2, 3, rng=RNG), tf.zeros([2, 8, 2]), resets=tf.zeros([2, 7], tf.bool)),
            r"`resets` of `unroll` is bool of shape \(2, 7\) .*booleans of shape \(2, 8\)",
        ),
        (lambda: unroll_with([1, 2, 3]), r"`lengths` of `unroll` is int32 of shape \(3,\)"),
        (lambda: unroll_with([1.0, 2.0]), r"`lengths` of `unroll` is float32 .*give integers"),
        (lambda: unroll_with([1, 99]), r"`lengths` of `unroll` is \[1, 99\]; each is of at least 0 and at most 8"),
        (lambda: unroll_with([-1, 2]), r"`lengths` of `unroll` is \[-1, 2\]"),
        (lambda: GRU(2, 3, rng=RNG)(tf.zeros([1, 4, 2]), None), r"its axes are \[batch, in_size\]"),
    ],
)
def test_bad_input_is_named(wrong: Callable[[], Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        wrong()


def test_cell_without_a_step_says_what_it_needs() -> None:
    class Cell(Core):
        gates = 1

    with pytest.raises(TypeError, match=r"^`Cell` needs `step\(projected, state\) -> \(output, new state\)`"):
        Cell(2, 3, rng=RNG)(tf.zeros([4, 2]), tf.zeros([4, 3]))


class Reader(VanillaRNN):
    """A core that also counts its inputs, and keeps a map of its places."""

    def step(self, projected: tf.Tensor, state: Any) -> tuple[tf.Tensor, Any]:
        hidden, read, seen = state
        output, hidden = super().step(projected, hidden)
        return output, (hidden, read + 1, seen + output[:, :2, tf.newaxis, tf.newaxis])


@pytest.mark.parametrize("rows", [3, 4])  # the map is of four by four: rows that would broadcast as well
def test_lengths_hold_for_states_of_any_shape(rows: int) -> None:
    core, x = Reader(3, 4, rng=RNG), RNG.normal([rows, 5, 3])
    lengths = [5, 0, 2, 3][:rows]

    def zeros(count: int) -> Any:
        return tf.zeros([count, 4]), tf.zeros([count], tf.int32), tf.zeros([count, 2, 4, 4])

    y, state = unroll(core, x, zeros(rows), lengths=tf.constant(lengths))
    np.testing.assert_array_equal(state[1], lengths)
    for i, length in enumerate(lengths):
        alone, last = unroll(core, x[i : i + 1, :length], zeros(1))
        np.testing.assert_allclose(y[i, :length], alone[0], atol=1e-6)
        for part, expected in zip(state, last, strict=True):
            np.testing.assert_allclose(part[i], expected[0], atol=1e-6)


@pytest.mark.parametrize("shape", [[], [4]])
def test_state_without_a_row_for_each_example_is_refused_with_lengths(shape: list[int]) -> None:
    state = tf.zeros([3, 4]), tf.zeros(shape, tf.int32), tf.zeros([3, 2, 4, 4])
    with pytest.raises(ValueError, match=r"the state of `unroll` has a part of shape .* each example keeps its own"):
        unroll(Reader(3, 4, rng=RNG), RNG.normal([3, 5, 3]), state, lengths=tf.constant([1, 2, 3]))
