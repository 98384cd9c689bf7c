"""Looks through a traced function for what DTensor gets wrong without a word, or ends the process by, before it runs.

Each rule was found by running the operation on four devices beside one; what isn't here is right there, or an error.
"""

import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gin
import tensorflow as tf

import core
from core.errors import ConfigurationError

_CHECKOUT = Path(core.__file__).parent.parent
_OWN = tuple(f"{_CHECKOUT / package}{os.sep}" for package in ("core", "models", "trainers"))
_ENGINE = f"{_CHECKOUT / 'core' / 'engine'}{os.sep}"
_BETWEEN = (*(f"{Path(package.__file__).parent}{os.sep}" for package in (tf, gin)), "<")  # nobody's lines
_DRAWS = ("StatelessRandom", "StatelessTruncated", "StatelessParameterized", "StatelessMultinomial", "StatelessShuffle",
          "Random", "TruncatedNormal", "Multinomial", "Stateful")  # fmt: skip
Said = tuple[str, str]  # what can't be, and what to write instead
_NO_DRAWS = ("StatelessRandomGet", "StatefulPartitionedCall")


def refuse_unsafe(function: Any) -> None:
    """Raises a `ConfigurationError` where the concrete `function`, or one that it calls, holds such an operation."""
    for op in itertools.chain.from_iterable(graph.get_operations() for graph in graphs_of(function.graph)):
        for rule in _RULES:
            said = rule(op)
            if said is not None:
                raise _refused(op, *said)


def explained(error: tf.errors.OpError) -> ConfigurationError:
    """Makes one paragraph of what DTensor says where it can't lay an operation out."""
    first = str(error.message).split("\n")[0].removesuffix(" ")
    return ConfigurationError(
        f"this step can't be laid out on the mesh: {first}. Write it by other operations, leave what it reads whole "
        "(`mesh.layouts`), or train on replicas (`@mirrored()`)."
    )


def _new_axis(op: tf.Operation) -> Said | None:
    if op.type != "StridedSlice" or not op.get_attr("new_axis_mask"):
        return None
    count, new, ellipsis = op.inputs[1].shape[0], op.get_attr("new_axis_mask"), op.get_attr("ellipsis_mask")
    kinds = ["new" if new >> i & 1 else "..." if ellipsis >> i & 1 else "axis" for i in range(count or 0)]
    old = [kind for kind in kinds if kind != "new"]
    complete = "..." in old or len(old) == op.inputs[0].shape.rank
    if complete and kinds[: len(old)] == old:
        return None  # at the end it is right
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
        "write `tf.cond(condition, lambda: x, lambda: y)`",
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
        "a `tf.TensorArray`, as `tf.map_fn`, `tf.scan` and a phase with outputs use it, unless that has "
        "`microbatches=1`, can't be laid out on a mesh",
        "compute all at once, or write into a tensor by `tf.tensor_scatter_nd_update`",
    )


def _backwards(op: tf.Operation) -> Said | None:
    if op.type != "StridedSlice":
        return None
    strides = tf.get_static_value(op.inputs[3])
    if strides is not None and min(strides, default=1) > 0:
        return None
    return (
        "a slice that goes backwards, as `x[::-1]`, takes the parts of a mesh in the wrong order",
        "write `tf.gather(x, tf.range(n - 1, -1, -1), axis=0)`",
    )


_RULES: tuple[Callable[[tf.Operation], Said | None], ...] = (
    _new_axis,
    _backwards,
    _scalar_select,
    _draw,
    _tensor_list,
)


def graphs_of(graph: Any) -> Iterator[Any]:
    """Yields a graph and those of the functions that it calls, each once."""
    seen, ahead = set[str](), [graph]
    while ahead:
        here = ahead.pop()
        yield here
        for op in here.get_operations():
            for value in op.node_def.attr.values():
                for name in [value.func.name, *(f.name for f in value.list.func)]:
                    called = here._get_function(name) if name and name not in seen else None
                    seen.add(name)
                    if called is not None:
                        ahead.append(called.graph)


def _refused(op: tf.Operation, what: str, instead: str) -> ConfigurationError:
    """Names the line that made an operation, the user's; or what of the project's did, and who called that."""
    frames = [frame for frame in op.traceback or () if not frame.filename.startswith(_BETWEEN)]
    if not frames:
        return ConfigurationError(f"the operation `{op.name}`: {what}: {instead}.")
    if not frames[-1].filename.startswith(_OWN):
        return ConfigurationError(f"{_line(frames[-1])}: {what}: {instead}.")
    # Below the engine stands whoever called the trainer: only what comes after it is a step's own.
    engine = max((i for i, frame in enumerate(frames) if frame.filename.startswith(_ENGINE)), default=-1)
    users = [i for i, frame in enumerate(frames) if i > engine and not frame.filename.startswith(_OWN)]
    called = f", called at {_line(frames[users[-1]])}" if users else ""
    ours = frames[users[-1] + 1] if users else frames[-1]
    package = ".".join(Path(ours.filename).relative_to(_CHECKOUT).with_suffix("").parts[:2])
    return ConfigurationError(f"`{ours.name}` of `{package}`{called}: {what}: leave it out, or train on replicas.")


def _line(frame: Any) -> str:
    return f"{frame.filename}:{frame.lineno}"
