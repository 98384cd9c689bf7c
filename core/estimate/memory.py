"""The memory of one device in a training step, in bytes."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from core.engine import Assembly
from core.estimate.graphs import called_by, is_loop
from core.estimate.liveness import fullest, timeline

SizeOf = Callable[[tf.Tensor], int]
PARAMETERS = "parameters"
SLOTS = "slots"
GRADIENTS = "gradients"
ACTIVATIONS = "activations"


def bytes_of(x: Any) -> int:
    """Returns the bytes of the values of a tensor or variable, or 0 if its shape isn't known."""
    if x.dtype in (tf.resource, tf.variant):
        return 0
    return 0 if None in (x.shape.rank, *(x.shape if x.shape.rank else ())) else math.prod(x.shape) * x.dtype.size


def standing(assembly: Assembly, local: Callable[[str, tf.Variable], int]) -> dict[str, int]:
    """Returns `{"parameters": bytes, "slots": bytes}`. `local(path, variable)` is a variable's bytes on one device."""
    found = {PARAMETERS: 0, SLOTS: 0}
    for path, variable in assembly.variables.items():
        found[PARAMETERS if path.startswith("task/") else SLOTS] += local(path, variable)
    return found


def held_in(chunk: Any, size_of: SizeOf, *, in_rounds: bool = False) -> Mapping[tuple[str, str], int]:
    """Returns the memory of tensors in a step of `chunk`: `{(peak, "gradients" or "activations"): bytes}`.

    The peaks are the fields of `Fullest`. `in_rounds` says that the chunk loops over rounds of steps.
    """
    graph = step_in(chunk.graph)
    found = fullest(timeline(step_in(graph) if in_rounds else graph, size_of))
    return {
        (moment, kind): size
        for moment, held in found._asdict().items()
        for kind, size in zip((GRADIENTS, ACTIVATIONS), held, strict=True)
    }


def step_in(graph: Any) -> Any:
    """Returns the graph of one step: the body of the first loop in the graph of a chunk."""
    loop = next(op for op in graph.get_operations() if is_loop(op))
    return called_by(loop)[0].graph


def on_device(device: str, size_of: SizeOf) -> SizeOf:
    """Returns a `size_of` that counts tensors on `device` and those without a device. Others count 0."""
    own = device.rpartition("device:")[2]
    return lambda x: size_of(x) if x.op.device.rpartition("device:")[2] in ("", own) else 0
