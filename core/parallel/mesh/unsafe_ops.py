"""Finds operations in a traced function, before it runs, that DTensor computes wrongly or crashes on.

The rules come from comparisons of operations on four devices and on one device. Other operations gave equal results, or
raised an error.
"""

import itertools
import os
import re
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

import gin
import tensorflow as tf

import core
from core.errors import ConfigurationError
from core.graphs import frames, graphs_of

_CHECKOUT = Path(core.__file__).parent.parent
_OWN = tuple(f"{_CHECKOUT / package}{os.sep}" for package in ("core", "models", "trainers"))
_ENGINE = f"{_CHECKOUT / 'core' / 'engine'}{os.sep}"
_BETWEEN = (f"{Path(gin.__file__).parent}{os.sep}", "<")  # library frames
_DRAWS = ("StatelessRandom", "StatelessTruncated", "StatelessParameterized", "StatelessMultinomial", "StatelessShuffle",
          "Random", "TruncatedNormal", "Multinomial", "Stateful")  # fmt: skip
_NOISE = re.compile(r"^.*?:\d+:\d+: (error: )?| Please file a feature request.*|\.? ?\(component id: \d+\)")
Said = tuple[str, str]  # the problem, and what to write instead
_NO_DRAWS = ("StatelessRandomGet", "StatefulPartitionedCall")


def refuse_unsafe(function: Any, parts: Collection[int]) -> None:
    """Raises a `ConfigurationError` if the concrete `function`, or a callee, has an unsafe operation.

    `parts` are the sizes of the mesh's axes: the possible numbers of shards of a dimension.
    """
    for op in _operations(function):
        said = _strided(op, parts)
        for rule in _RULES:
            said = said or rule(op)
        if said is not None:
            raise _refused(op, *said)


def explained(error: tf.errors.OpError, function: Any) -> ConfigurationError:
    """Returns an error that explains DTensor's `error`: with the user's line whose operation it can't shard."""
    first = _NOISE.sub("", str(error.message).split("\n")[0]).rstrip(" .")
    named = re.match(r"'tf\.(\w+)' op", first)
    # DTensor doesn't know lines; with several such operations, the first one is reported.
    op = next((op for op in _operations(function) if named and op.type == named[1]), None)
    made_by = _frames(op) if op is not None else []
    users = [frame for frame in made_by if not frame.filename.startswith(_OWN)]
    at = f" (the first such one is at {_line(users[-1])})" if users else ""
    return ConfigurationError(
        f"this step can't be laid out on the mesh: {first}{at}. Use other operations, keep its inputs whole "
        "(`mesh.layouts`), or train on replicas (`@mirrored()`)."
    )


def _operations(function: Any) -> Iterator[tf.Operation]:
    return itertools.chain.from_iterable(graph.get_operations() for graph in graphs_of(function.graph))


def _new_axis(op: tf.Operation) -> Said | None:
    if op.type != "StridedSlice" or not op.get_attr("new_axis_mask"):
        return None
    count, new, ellipsis = op.inputs[1].shape[0], op.get_attr("new_axis_mask"), op.get_attr("ellipsis_mask")
    kinds = ["new" if new >> i & 1 else "..." if ellipsis >> i & 1 else "axis" for i in range(count or 0)]
    old = [kind for kind in kinds if kind != "new"]
    complete = "..." in old or len(old) == op.inputs[0].shape.rank
    if complete and kinds[: len(old)] == old:
        return None  # in the last position it is right
    return (
        "a new axis before another one, as `x[tf.newaxis]` and `x[:, tf.newaxis]` make it, ends the process on a mesh",
        "write `tf.expand_dims(x, axis)`",
    )


def _scalar_select(op: tf.Operation) -> Said | None:
    if op.type not in ("Select", "SelectV2"):
        return None
    condition, x, y = (tensor.shape for tensor in op.inputs)
    if condition.rank != 0 or x.rank == 0 or not x.is_compatible_with(y):
        return None
    return (
        "`tf.where` of one condition for two tensors ends the process on a mesh",
        "write `tf.where(tf.broadcast_to(condition, x.shape), x, y)`",
    )


def _draw(op: tf.Operation) -> Said | None:
    if not op.type.startswith(_DRAWS) or op.type.startswith(_NO_DRAWS):
        return None
    if all(reader.type == "Relayout" for output in op.outputs for reader in output.consumers()):
        return None
    return f"`{op.type}` would draw the same numbers for each part of a mesh", "draw from the step's `rng` instead"


def _tensor_list(op: tf.Operation) -> Said | None:
    if op.type != "TensorListSetItem":
        return None
    return (
        "a `tf.TensorArray`, as `tf.map_fn`, `tf.scan`, attention in tiles (`chunk_size=None` turns them off) and a "
        "phase with outputs use it, unless that has `microbatches=1`, can't be laid out on a mesh",
        "compute all at once, or write into a tensor by `tf.tensor_scatter_nd_update`",
    )


def _strided(op: tf.Operation, parts: Collection[int]) -> Said | None:
    if op.type != "StridedSlice":
        return None
    strides = tf.get_static_value(op.inputs[3])
    if strides is None or min(strides, default=1) <= 0:
        return (
            "a slice that goes backwards, as `x[::-1]`, takes the parts of a mesh in the wrong order",
            "write `tf.gather(x, tf.range(n - 1, -1, -1), axis=0)`",
        )
    for size, stride in zip(_dimensions(op), strides, strict=True):
        # Each shard is sliced from its own start, which is right only if that is on the whole slice's grid.
        if stride > 1 and (size is None or any(n > 1 and size % n == 0 and size // n % stride for n in parts)):
            return (
                f"a slice by steps of {stride}, as `x[::{stride}]`, selects wrong values if the step doesn't divide a "
                "mesh's shards",
                f"write `tf.gather(x, tf.range(0, n, {stride}), axis=0)`",
            )
    return None


def _dimensions(op: tf.Operation) -> list[int | None]:
    """Returns the size of the dimension of each entry of a strided slice; None for ellipses and new axes."""
    shape, new, ellipsis = op.inputs[0].shape, op.get_attr("new_axis_mask"), op.get_attr("ellipsis_mask")
    count = op.inputs[3].shape[0]
    taken = sum(not (new | ellipsis) >> i & 1 for i in range(count))
    found: list[int | None] = []
    d = 0
    for i in range(count):
        if new >> i & 1:
            found.append(None)
        elif ellipsis >> i & 1:
            found.append(None)
            d += (shape.rank or taken) - taken
        else:
            found.append(shape[d] if shape.rank is not None else None)
            d += 1
    return found


def _scattered(op: tf.Operation) -> Said | None:
    if op.type != "ScatterNd":
        return None
    return (
        "`tf.scatter_nd`, and with it the gradients of `tf.gather_nd`, `tf.math.top_k` and `tf.sort`, uses "
        "indices of the whole tensor in each shard of a mesh",
        "multiply by `tf.one_hot(indices, n)` and add up",
    )


def _decomposition(op: tf.Operation) -> Said | None:
    if op.type not in ("SelfAdjointEigV2", "Qr", "MatrixTriangularSolve"):
        return None
    return (
        f"`{op.type}`, which `shampoo`, `soap` and `psgd_kron` need, can't be laid out on a mesh",
        "choose another optimizer or layer, or train on replicas",
    )


def _incomplete_beta(op: tf.Operation) -> Said | None:
    if op.type != "Betainc":
        return None
    return (
        "`tf.math.betainc`, by which `mixup` draws from a beta distribution, ends the process on a mesh",
        "draw by other operations",
    )


_RULES: tuple[Callable[[tf.Operation], Said | None], ...] = (
    _decomposition,
    _incomplete_beta,
    _new_axis,
    _scattered,
    _scalar_select,
    _draw,
    _tensor_list,
)


def _refused(op: tf.Operation, what: str, instead: str) -> ConfigurationError:
    """Returns an error that names the user's line that made `op`. Without one, it names our function and its caller."""
    made_by = _frames(op)
    if not made_by:
        return ConfigurationError(f"the operation `{op.name}`: {what}: {instead}.")
    if not made_by[-1].filename.startswith(_OWN):
        return ConfigurationError(f"{_line(made_by[-1])}: {what}: {instead}.")
    # Frames below the engine belong to the trainer's caller: only later ones are a step's own.
    engine = max((i for i, frame in enumerate(made_by) if frame.filename.startswith(_ENGINE)), default=-1)
    users = [i for i, frame in enumerate(made_by) if i > engine and not frame.filename.startswith(_OWN)]
    called = f", called at {_line(made_by[users[-1]])}" if users else ""
    ours = made_by[users[-1] + 1] if users else made_by[-1]
    package = ".".join(Path(ours.filename).relative_to(_CHECKOUT).with_suffix("").parts[:2])
    return ConfigurationError(f"`{ours.name}` of `{package}`{called}: {what}: leave it out, or train on replicas.")


def _frames(op: tf.Operation) -> list[Any]:
    """Returns the call stack that made `op`. The innermost frame is last."""
    return [frame for frame in frames(op)[::-1] if not frame.filename.startswith(_BETWEEN)]


def _line(frame: Any) -> str:
    return f"{frame.filename}:{frame.lineno}"
