"""Gradient checkpointing: activations that are recomputed for the gradient instead of stored."""

import contextvars
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from core.module import Module, copied, is_copy, named_variables
from core.random import Rng, noticing_draws
from core.task.statistics import Statistics
from core.tensorflow_private import captures_of_loop, flattened, get_default_graph

Function = Callable[..., Any]
RECOMPUTES = "_recomputes"  # attribute of the classes whose calls recompute: `recompute_in_place`


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
    """Calls `layer` with gradient checkpointing. As a `Module`, it exposes the variables of `layer`."""

    def __init__(self, fn: Function):
        super().__init__()
        self.layer = fn
        self.__signature__ = inspect.signature(fn)  # containers look here for `rng` and `statistics`

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if hasattr(type(self.layer), RECOMPUTES):  # twice would compute a third time
            return self.layer(*args, **kwargs)
        _check_closure(self.layer)
        return recomputed_call(self.layer, type(self.layer).__call__, args, kwargs)


def recomputed_call(fn: Function, call: Function, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Returns `call(fn, *args, **kwargs)`, and stores only the arguments for the gradient."""
    given = (list(args), kwargs, _held_by(fn))
    values = tf.nest.flatten(given)
    # `rng.progress` has no gradient; as an argument of a custom gradient, it would count as used.
    still = {id(x) for rng in (*args, *kwargs.values()) if isinstance(rng, Rng) for x in tf.nest.flatten(rng)}
    moving = [i for i, x in enumerate(values) if tf.is_tensor(x) and x.dtype.is_floating and id(x) not in still]
    results: list[Any] = []

    def compute(floats: Sequence[tf.Tensor], statistics: bool, weights: Mapping[int, tf.Tensor] = {}) -> Any:
        chosen = list(values)
        for i, value in zip(moving, floats, strict=True):
            chosen[i] = value
        if not statistics:  # only the sums of the first computation count
            chosen = [Statistics(v.sum_over_replicas) if isinstance(v, Statistics) else v for v in chosen]
        again_args, again_kwargs, held = tf.nest.pack_sequence_as(given, chosen)
        now = fn
        if held or weights:
            now = copied(fn, {**weights, **{id(x): y for x, y in zip(given[2], held, strict=True)}})
        return call(now, *again_args, **again_kwargs)

    @tf.custom_gradient
    def run(*floats: tf.Tensor) -> Any:
        results[:] = [compute(floats, statistics=True)]
        # The dtype of the phase is there: the gradient of a loop is taken outside of it.
        context = contextvars.copy_context()

        def gradient(*upstream: tf.Tensor, variables: Sequence[tf.Variable] = ()) -> Any:
            return context.copy().run(again, upstream, variables)

        def again(upstream: Sequence[tf.Tensor], variables: Sequence[tf.Variable]) -> Any:
            zero = _zero_after(upstream[0])
            weights = _read_in_loop(fn)
            with tf.GradientTape() as tape, noticing_draws():  # the first computation already reported its draws
                inputs = [x + tf.cast(zero, x.dtype) for x in floats]
                tape.watch([inputs, list(weights.values())])
                outputs = _floats_in(compute(inputs, statistics=False, weights=weights))
            by_handle = {id(v.handle): weights[id(v)] for v in _variables_of(fn) if id(v) in weights}
            sources = [*inputs, *(by_handle.get(id(v.handle), v) if by_handle else v for v in variables)]
            gradients = tape.gradient(outputs, sources, upstream, tf.UnconnectedGradients.ZERO)
            return gradients[: len(floats)], gradients[len(floats) :]

        return _floats_in(results[0]), gradient

    outputs = iter(run(*[values[i] for i in moving]))
    return tf.nest.map_structure(lambda x: next(outputs) if _is_float(x) else x, results[0])


def _is_float(x: Any) -> bool:
    return bool(tf.is_tensor(x) and x.dtype.is_floating)


def _floats_in(result: Any) -> list[tf.Tensor]:
    return [x for x in tf.nest.flatten(result) if _is_float(x)]


def _held_by(fn: Function) -> list[tf.Tensor]:
    """Returns the float tensors in attributes of the module `fn` and its submodules, which need gradients too.

    Constants need no gradients. The exception is a copy made by `with_values`, where constants replace variables.
    """
    if not isinstance(fn, tf.Module):
        return []
    with_constants = is_copy(fn)

    def wanted(x: Any) -> bool:
        return _is_float(x) and not isinstance(x, tf.Variable) and (with_constants or tf.is_symbolic_tensor(x))

    return list({id(x): x for x in flattened(fn, wanted)}.values())


def _variables_of(fn: Function) -> list[tf.Variable]:
    return list(named_variables(fn).values()) if isinstance(fn, tf.Module) else []


def _read_in_loop(fn: Function) -> dict[int, tf.Tensor]:
    """Returns `{id of a variable of fn: value}` in the gradient of a `tf.while_loop`; otherwise an empty dict.

    In such a gradient, TensorFlow can read a variable only through the handle that the loop's body has captured.
    """
    captures = captures_of_loop(get_default_graph())
    if captures is None:
        return {}
    captured = {id(outer): inner for outer, inner in captures}
    return {
        id(v): tf.raw_ops.ReadVariableOp(resource=captured[id(v.handle)], dtype=v.dtype)
        for v in _variables_of(fn)
        if id(v.handle) in captured
    }


def _zero_after(upstream: tf.Tensor) -> tf.Tensor:
    """Returns a zero computed from the gradient `upstream`, which compilers can't simplify to a constant.

    The caller adds this zero to the arguments, so that the recomputation waits for `upstream`. XLA ignores control
    dependencies, and would merge the recomputation with the forward pass. Only a slice of the last axis is read: on a
    mesh, reading all of a sharded tensor would gather it.
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
