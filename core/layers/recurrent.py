"""Recurrent cores, and `unroll`, which runs a core over time.

A core maps an input and a state to an output and the next state; `unroll` repeats this along `[batch, time, size]`:

    >>> from core.layers import LSTM, unroll
    >>> from core.random import Rng
    >>> core = LSTM(8, 16, rng=Rng.from_seed(0))
    >>> outputs, last = unroll(core, tf.ones([2, 5, 8]))
    >>> outputs.shape, last.cell.shape
    (TensorShape([2, 5, 16]), TensorShape([2, 16]))
"""

from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from core import initializers
from core.arguments import check_size
from core.errors import ConfigurationError
from core.initializers import Initializer
from core.layers.linear import linear
from core.layers.shapes import add_bias, check_axes, check_last, nan_unless, sizes
from core.module import Module
from core.random import Rng
from core.tracing import computes_by_parts


class Core(Module):
    """One step of a recurrent network: `core(x, state) -> (output, new state)`.

    `unroll` calls `project` once for all time steps, because its result depends on the inputs alone.
    """

    gates: int

    def __init__(
        self,
        in_size: int,
        hidden_size: int,
        *,
        rng: Rng,
        w_init: Initializer | None = None,
        u_init: Initializer | None = None,
    ):
        super().__init__()
        check_size(in_size=in_size, hidden_size=hidden_size)
        self.in_size, self.hidden_size = in_size, hidden_size
        w_init, u_init = w_init or initializers.lecun_normal(), u_init or initializers.orthogonal()

        def per_gate(init: Initializer, name: str, size: int) -> tf.Variable:
            parts = [init(rng.fold(name).fold(gate), [size, hidden_size]) for gate in range(self.gates)]
            return tf.Variable(tf.concat(parts, 1), name=name)

        self.w = per_gate(w_init, "w", in_size)  # from the input
        self.u = per_gate(u_init, "u", hidden_size)  # from the state
        self.b = tf.Variable(self._first_bias(), name="b")

    def __call__(self, x: tf.Tensor, state: Any) -> tuple[tf.Tensor, Any]:
        check_axes(self, x, "batch, in_size")
        return self.step(self.project(x), state)

    def project(self, x: tf.Tensor) -> tf.Tensor:
        """Returns the part of the gates' sums that depends on the input `x` alone."""
        check_last(self, x, self.in_size, "in_size")
        return linear(x, self.w, self.b)

    def step(self, projected: tf.Tensor, state: Any) -> tuple[tf.Tensor, Any]:
        """Returns `(output, new state)` for `projected`, the result of `project(x)`, and the old `state`."""
        raise TypeError(f"`{type(self).__name__}` needs `step(projected, state) -> (output, new state)`.")

    def initial_state(self, batch_size: Any, dtype: tf.DType = tf.float32) -> Any:
        return tf.zeros([batch_size, self.hidden_size], dtype)

    def _first_bias(self) -> tf.Tensor:
        return tf.zeros([self.gates * self.hidden_size])


class VanillaRNN(Core):
    """Computes `h = tanh(x w + h u + b)` (Elman, 1990)."""

    gates = 1

    def step(self, projected: tf.Tensor, state: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        hidden = tf.tanh(projected + linear(state, self.u))
        return hidden, hidden


class LSTMState(NamedTuple):
    """The state of an LSTM: `hidden` [batch, size] and `cell` [batch, size]."""

    hidden: tf.Tensor
    cell: tf.Tensor


class LSTM(Core):
    """The LSTM of Hochreiter and Schmidhuber (1997), with forget gates (Gers et al., 2000).

    The bias of a forget gate starts at 1 (open). `w`, `u` and `b` store the gates in the order input, forget, cell,
    output. `b` is the sum of PyTorch's two biases.
    """

    gates = 4

    def step(self, projected: tf.Tensor, state: LSTMState) -> tuple[tf.Tensor, LSTMState]:
        i, f, g, o = tf.split(projected + linear(state.hidden, self.u), 4, -1)
        cell = tf.sigmoid(f) * state.cell + tf.sigmoid(i) * tf.tanh(g)
        hidden = tf.sigmoid(o) * tf.tanh(cell)
        return hidden, LSTMState(hidden, cell)

    def initial_state(self, batch_size: Any, dtype: tf.DType = tf.float32) -> LSTMState:
        zeros = tf.zeros([batch_size, self.hidden_size], dtype)
        return LSTMState(zeros, zeros)

    def _first_bias(self) -> tf.Tensor:
        zeros = tf.zeros([self.hidden_size])
        return tf.concat([zeros, zeros + 1.0, zeros, zeros], 0)


class GRU(Core):
    """The GRU of Cho et al. (2014), with the reset gate applied to `h u`, not to `h`, as in cuDNN.

    So one matmul computes all gates. `w`, `u` and `b` store the gates in the order reset, update, new. `b_new` is added
    to the new gate's `h u`.
    """

    gates = 3

    def __init__(
        self,
        in_size: int,
        hidden_size: int,
        *,
        rng: Rng,
        w_init: Initializer | None = None,
        u_init: Initializer | None = None,
    ):
        super().__init__(in_size, hidden_size, rng=rng, w_init=w_init, u_init=u_init)
        self.b_new = tf.Variable(tf.zeros([hidden_size]), name="b_new")

    def step(self, projected: tf.Tensor, state: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        x_gates, x_new = tf.split(projected, [2 * self.hidden_size, self.hidden_size], -1)
        h_gates, h_new = tf.split(linear(state, self.u), [2 * self.hidden_size, self.hidden_size], -1)
        reset, update = tf.split(tf.sigmoid(x_gates + h_gates), 2, -1)
        new = tf.tanh(x_new + reset * (add_bias(h_new, self.b_new)))
        hidden = new + update * (state - new)
        return hidden, hidden


def unroll(
    core: Core,
    x: tf.Tensor,
    state: Any = None,
    *,
    lengths: tf.Tensor | None = None,
    resets: tf.Tensor | None = None,
) -> tuple[tf.Tensor, Any]:
    """Runs `core` over `x` `[batch, time, in_size]`; returns outputs `[batch, time, size]` and the last state.

    `state` is zeros by default. With `lengths` `[batch]`, an example stops after its length: its state stays, and its
    outputs are zero. A length that is out of range at run time gives outputs and states of `nan`. Where `resets`
    `[batch, time]` is true, a sequence begins: the core's initial state replaces the state.
    """
    check_axes(core, x, "batch, time, in_size")
    if any(map(computes_by_parts, core.variables)):
        raise ConfigurationError(
            f"`unroll` computes `{type(core).__name__}` in a loop over time, whose lists of tensors have no layout on "
            "a mesh: train on replicas, with `Experiment.strategy = @mirrored()`."
        )
    batch, time, _ = sizes(x)
    initial = core.initial_state(batch, x.dtype)
    state = initial if state is None else state
    if lengths is not None:
        lengths = _read_lengths(lengths, x)
        _check_state(state, x)
    begins = None
    if resets is not None:
        _check_resets(resets, x)
        _check_state(state, x)
        begins = tf.TensorArray(tf.bool, time, element_shape=x.shape[:1]).unstack(tf.transpose(resets))
    # Time comes first, and inputs are projected at once: each loop step then only reads and computes the state's part.
    inputs = tf.transpose(core.project(x), [1, 0, 2])
    elements = tf.TensorArray(x.dtype, time, element_shape=inputs.shape[1:]).unstack(inputs)
    outputs = tf.TensorArray(x.dtype, time, element_shape=[x.shape[0], core.hidden_size])

    def body(t: tf.Tensor, state: Any, outputs: tf.TensorArray) -> tuple[tf.Tensor, Any, tf.TensorArray]:
        if begins is not None:
            reset = begins.read(t)
            state = tf.nest.map_structure(lambda a, b: tf.where(_beside(reset, a), a, b), initial, state)
        output, new = core.step(elements.read(t), state)
        if lengths is not None:
            going = t < lengths
            output = tf.where(_beside(going, output), output, tf.zeros([], output.dtype))
            new = tf.nest.map_structure(lambda a, b: tf.where(_beside(going, a), a, b), new, state)
        return t + 1, new, outputs.write(t, output)

    # XLA needs the number of steps as a bound to reserve memory for the gradient.
    _, state, outputs = tf.while_loop(
        lambda t, *_: t < time, body, (tf.constant(0), state, outputs), maximum_iterations=time
    )
    y = tf.transpose(outputs.stack(), [1, 0, 2])
    if lengths is None:
        return y, state
    sane = (lengths >= 0) & (lengths <= time)
    return nan_unless(sane, y), tf.nest.map_structure(
        lambda s: nan_unless(sane, s) if s.dtype.is_floating else s, state
    )


def _beside(going: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
    """Reshapes `going` `[batch]` to `[batch, 1, ...]` with the rank of `x`, so that it can select rows of `x`."""
    return tf.reshape(going, [-1, *[1] * (x.shape.rank - 1)])


def _check_state(state: Any, x: tf.Tensor) -> None:
    """Raises an error if a tensor of `state` has no batch axis. `lengths` and `resets` need it."""
    for part in tf.nest.flatten(state):
        if part.shape.rank in (0, None) or not part.shape[:1].is_compatible_with(x.shape[:1]):
            raise ValueError(
                f"the state of `unroll` has a part of shape {part.shape} for `x` of shape {x.shape}; with `lengths` "
                "or `resets` each example keeps its own: give every part the axes [batch, ...]."
            )


def _check_resets(resets: Any, x: tf.Tensor) -> None:
    if not tf.is_tensor(resets) or resets.dtype != tf.bool or not resets.shape.is_compatible_with(x.shape[:2]):
        found = f"{resets.dtype.name} of shape {resets.shape}" if tf.is_tensor(resets) else type(resets).__name__
        raise ValueError(
            f"`resets` of `unroll` is {found} for `x` of shape {x.shape}; give booleans of shape {x.shape[:2]}, true "
            "where a sequence begins."
        )


def _read_lengths(lengths: Any, x: tf.Tensor) -> tf.Tensor:
    """Returns `lengths` as int32, with one length for each example of `x`."""
    lengths = tf.convert_to_tensor(lengths)
    if not lengths.dtype.is_integer or not lengths.shape.is_compatible_with(x.shape[:1]):
        raise ValueError(
            f"`lengths` of `unroll` is {lengths.dtype.name} of shape {lengths.shape} for `x` of shape {x.shape}; give "
            f"integers of shape {x.shape[:1]}, one for each example."
        )
    known, time = tf.get_static_value(lengths), x.shape[1]
    if known is not None and ((known < 0) | (known > (np.inf if time is None else time))).any():
        raise ValueError(f"`lengths` of `unroll` is {known.tolist()}; each is of at least 0 and at most {time}.")
    lengths = tf.cast(lengths, tf.int32)
    if x.shape[0] is not None and lengths.shape.is_fully_defined():
        return lengths
    # Broadcasting one length to many examples would hide a mistake; `stack` raises at run time, under XLA too.
    return tf.unstack(tf.stack([tf.zeros(sizes(x)[:1], tf.int32), lengths]), num=2)[1]
