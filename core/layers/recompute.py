"""Gradient checkpointing: activations that are recomputed for the gradient instead of stored."""

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from core.module import Module
from core.random import Rng, noticing_draws
from core.task.statistics import Statistics

Function = Callable[..., Any]


def recompute(fn: Function) -> "Recomputed":
    """Wraps a layer or function: a call stores only its arguments for the gradient (Chen et al., 2016).

    Results and gradients equal those of `fn`. A graph needs less memory; eager code needs as much as before. Only
    arguments and variables receive gradients, so an `fn` that closes over a float tensor raises an error. Use the
    returned module in place of `fn`, in a `Sequential` too.

    >>> from core.layers import Linear
    >>> from core.random import Rng
    >>> block = recompute(Linear(4, 4, rng=Rng.from_seed(0)))
    >>> block(tf.ones([2, 4])).shape, list(block.parameters())
    (TensorShape([2, 4]), ['layer/b', 'layer/w'])
    """
    if not callable(fn):
        raise TypeError(f"`fn` of `recompute` is {fn!r}; give a layer or a function.")
    return Recomputed(fn)


class Recomputed(Module):
    """Calls `layer` with gradient checkpointing; a `Module`, so that the layer's variables are found."""

    def __init__(self, fn: Function):
        super().__init__()
        self.layer = fn
        self.__signature__ = inspect.signature(fn)  # containers look here for `rng` and `statistics`

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        _check_closure(self.layer)
        values = tf.nest.flatten((args, kwargs))
        # `rng.progress` has no gradient; as an argument of a custom gradient, it would count as used.
        still = {id(x) for rng in (*args, *kwargs.values()) if isinstance(rng, Rng) for x in tf.nest.flatten(rng)}
        moving = [i for i, x in enumerate(values) if tf.is_tensor(x) and x.dtype.is_floating and id(x) not in still]

        def compute(floats: Sequence[tf.Tensor], statistics: bool) -> Any:
            chosen = list(values)
            for i, value in zip(moving, floats, strict=True):
                chosen[i] = value
            if not statistics:  # only the sums of the first computation count
                chosen = [Statistics(v.sum_over_replicas) if isinstance(v, Statistics) else v for v in chosen]
            again_args, again_kwargs = tf.nest.pack_sequence_as((args, kwargs), chosen)
            return self.layer(*again_args, **again_kwargs)

        @tf.custom_gradient
        def run(*floats: tf.Tensor) -> Any:
            result = compute(floats, statistics=True)

            def gradient(*upstream: tf.Tensor, variables: Sequence[tf.Variable] = ()) -> Any:
                zero = _zero_after(upstream[0])
                with tf.GradientTape() as tape, noticing_draws():  # the first computation already reported its draws
                    again = [x + tf.cast(zero, x.dtype) for x in floats]
                    tape.watch(again)
                    outputs = tf.nest.flatten(compute(again, statistics=False))
                sources = [*again, *variables]
                gradients = tape.gradient(outputs, sources, upstream, tf.UnconnectedGradients.ZERO)
                return gradients[: len(floats)], gradients[len(floats) :]

            return result, gradient

        return run(*[values[i] for i in moving])


def _zero_after(upstream: tf.Tensor) -> tf.Tensor:
    """Returns a zero computed from the gradient `upstream`, which compilers can't simplify to a constant.

    The zero is added to the arguments, so that the recomputation waits for `upstream`. Otherwise compilers may merge
    it with the forward pass, since XLA ignores control dependencies. Only a slice of the last axis is read: on a mesh,
    reading all of a sharded tensor would gather it.
    """
    few = upstream[..., :1] if (upstream.shape.rank or 0) > 1 else upstream
    largest = tf.reduce_max(tf.cast(few, tf.float32))  # minus infinity for an empty tensor
    return tf.stop_gradient(tf.minimum(tf.abs(largest), 0.0))


def _check_closure(fn: Function) -> None:
    for name, value in inspect.getclosurevars(fn).nonlocals.items() if inspect.isfunction(fn) else ():
        if tf.is_tensor(value) and not isinstance(value, tf.Variable) and value.dtype.is_floating:
            raise ValueError(
                f"`fn` of `recompute` closes over the tensor `{name}`, which its gradient would not reach; "
                f"make `{name}` an argument."
            )
