"""Evaluates JAX peers with NumPy: JAX only traces them, because compiling takes ten times as long.

JAX runs operations without an entry here, one by one.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

Array = Any


def in_numpy(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Returns `fn`, traced once per structure, shapes and dtypes of its arguments, and evaluated with NumPy."""
    traced: dict[Any, Any] = {}

    def call(*args: Any) -> Any:
        leaves, tree = jax.tree.flatten(args)
        leaves = [np.asarray(leaf) for leaf in leaves]
        key = (tree, *((leaf.shape, leaf.dtype) for leaf in leaves))
        if key not in traced:
            closed, made = jax.make_jaxpr(fn, return_shape=True)(*jax.tree.unflatten(tree, leaves))
            traced[key] = closed, jax.tree.structure(made)
        closed, structure = traced[key]
        with np.errstate(all="ignore"):
            return jax.tree.unflatten(structure, evaluate(closed, leaves))

    return call


def evaluate(closed: Any, args: Sequence[Array]) -> list[Array]:
    """Returns the outputs of a closed jaxpr as arrays of JAX's dtypes."""
    jaxpr = closed.jaxpr
    known = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*closed.consts, *args), strict=True))

    def read(variable: Any) -> Array:
        return np.asarray(variable.val if hasattr(variable, "val") else known[variable])

    for equation in jaxpr.eqns:
        values, params, name = [read(x) for x in equation.invars], equation.params, equation.primitive.name
        if name in OPERATIONS:
            made = [OPERATIONS[name](*values, **params)]
        elif name in ("jit", "pjit"):
            made = evaluate(params["jaxpr"], values)
        elif name in ("closed_call", "custom_jvp_call", "custom_vjp_call"):
            made = evaluate(params["call_jaxpr"], values)
        elif name == "cond":
            made = evaluate(params["branches"][int(values[0])], values[1:])
        elif name == "scan":
            made = scan(*values, **params)
        else:
            made = equation.primitive.bind(*values, **params)
            made = made if equation.primitive.multiple_results else [made]
        known |= {x: np.asarray(y, x.aval.dtype) for x, y in zip(equation.outvars, made, strict=True)}
    return [read(x) for x in jaxpr.outvars]


def scan(*values: Array, jaxpr: Any, length: int, reverse: bool, num_consts: int, num_carry: int, **_: Any) -> Any:
    consts, carry, xs = values[:num_consts], values[num_consts:][:num_carry], values[num_consts + num_carry :]
    made: list[Any] = [None] * length
    for i in range(length)[:: -1 if reverse else 1]:
        outputs = evaluate(jaxpr, [*consts, *carry, *(x[i] for x in xs)])
        carry, made[i] = outputs[:num_carry], outputs[num_carry:]
    return [*carry, *(np.stack(ys) for ys in zip(*made, strict=True))]


def select_n(which: Array, *cases: Array, **_: Any) -> Array:
    return np.choose(which.astype(int), cases) if len(cases) > 2 else np.where(which, cases[-1], cases[0])


def broadcast_in_dim(x: Array, *, shape: Sequence[int], broadcast_dimensions: Sequence[int], **_: Any) -> Array:
    sizes = [1] * len(shape)
    for axis, size in zip(broadcast_dimensions, x.shape, strict=True):
        sizes[axis] = size
    return np.broadcast_to(x.reshape(sizes), shape)


def dot_general(a: Array, b: Array, *, dimension_numbers: Any, **_: Any) -> Array:
    (a_sum, b_sum), (a_batch, b_batch) = dimension_numbers
    batch = list(range(len(a_batch)))
    summed = [len(batch) + i for i in range(len(a_sum))]
    free = len(batch) + len(summed)
    axes = []
    for rank, dims in ((a.ndim, (a_batch, a_sum)), (b.ndim, (b_batch, b_sum))):
        named = dict(zip((*dims[0], *dims[1]), (*batch, *summed), strict=True))
        names = [named[i] if i in named else (free := free + 1) for i in range(rank)]
        axes.append(names)
    kept = [[name for name in names if name > len(batch) + len(summed)] for names in axes]
    return np.einsum(a, axes[0], b, axes[1], [*batch, *kept[0], *kept[1]])


def plain(fn: Callable[..., Array]) -> Callable[..., Array]:
    """Wraps an operation whose parameters don't matter."""
    return lambda *values, **_: fn(*values)


def along(fn: Callable[..., Array]) -> Callable[..., Array]:
    """Wraps a reduction over `axes`."""
    return lambda x, *, axes, **_: fn(x, axis=tuple(axes))


def divide(a: Array, b: Array) -> Array:
    return a / b if a.dtype.kind == "f" else (np.sign(a) * np.sign(b)) * (np.abs(a) // np.abs(b))


SAME_NAMES = ["sqrt", "abs", "sign", "square", "exp", "log", "log1p", "expm1", "tanh", "sin", "cos", "floor", "copy"]
OTHER_NAMES = {
    "mul": "multiply",
    "add": "add",
    "sub": "subtract",
    "neg": "negative",
    "pow": "power",
    "rem": "fmod",
    "max": "maximum",
    "min": "minimum",
    "lt": "less",
    "le": "less_equal",
    "gt": "greater",
    "ge": "greater_equal",
    "eq": "equal",
    "ne": "not_equal",
    "is_finite": "isfinite",
}
OPERATIONS: dict[str, Callable[..., Array]] = {
    **{name: plain(getattr(np, name)) for name in SAME_NAMES},
    **{name: plain(getattr(np, other)) for name, other in OTHER_NAMES.items()},
    "div": plain(divide),
    "stop_gradient": plain(np.asarray),
    "rsqrt": plain(lambda x: 1.0 / np.sqrt(x)),
    "logistic": plain(lambda x: 0.5 * (1.0 + np.tanh(0.5 * x))),
    "integer_pow": lambda x, *, y, **_: x**y if y >= 0 else 1.0 / x**-y,
    "convert_element_type": plain(np.asarray),
    "select_n": select_n,
    "broadcast_in_dim": broadcast_in_dim,
    "dot_general": dot_general,
    "reshape": lambda x, *, new_sizes, **_: x.reshape(new_sizes),
    "squeeze": lambda x, *, dimensions, **_: np.squeeze(x, tuple(dimensions)),
    "transpose": lambda x, *, permutation, **_: x.transpose(permutation),
    "concatenate": lambda *xs, dimension, **_: np.concatenate(xs, dimension),
    "reduce_sum": along(np.sum),
    "reduce_max": along(np.max),
    "reduce_and": along(np.all),
}
