"""Checks the dtypes in which a step computes, from the input to the loss."""

import re
import warnings
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from core.estimate.operations import products_of
from core.graphs import ancestors, bodies, everything, is_own, line
from core.task import Batch, Task
from core.testing.traced import NARROW, Step, steps

_EXPENSIVE = re.compile("_?(Fused|Sparse)?MatMul|BatchMatMul|Conv[23]D|DepthwiseConv2d|Einsum")
_WEIGHTS = ("ReadVariableOp", "Const", "Placeholder")
# Sums, and the dtypes in which a CPU's kernel, with or without oneDNN, adds term by term.
_SUMS = {
    "Cumsum": NARROW, "Einsum": NARROW, "Sum": NARROW[1:], "Mean": NARROW[1:], "Softmax": (), "LogSoftmax": (),
}  # fmt: skip
_TERMS = {tf.bfloat16: 2**8, tf.float16: 2**11}  # so many equal terms have a sum that grows no further
DETOURS = {
    tf.float16: "It has three digits and overflows at 65,504",
    tf.bfloat16: "It has two to three digits",
    tf.float64: "It costs twice the memory, and a GPU computes it slowly; often a NumPy array brought it in",
}


def assert_float32(task: Task, batch: Batch, *, except_for: Sequence[str] = (), seed: int = 0) -> None:
    """Asserts that no phase's own code computes in float16, bfloat16 or float64, unless a feature has that type.

    `except_for=["bfloat16"]` permits bfloat16.
    """
    for step in steps(task, batch, seed=seed):
        check_float32(step, except_for)


def check_precision(step: Step) -> None:
    """Asserts for one traced step that its matmuls and convolutions compute in the phase's dtype."""
    if step.dtype == tf.float32:
        return
    for op in everything(step.function.graph.get_operations()):
        if not _EXPENSIVE.match(op.type) or not op.inputs[-1].dtype.is_floating or op.inputs[-1].dtype == step.dtype:
            continue
        left = _left_at(op, step.dtype)
        if left is not None:
            raise AssertionError(
                f"{step.name} computes a {op.type} in {op.inputs[-1].dtype.name}, though its precision is "
                f"{step.dtype.name}, which it leaves {line(left)}. Stay in the dtype of the inputs: "
                "`tf.cast(y, x.dtype)`, where `x` comes from the batch or from `rng`; weights are cast by layers."
            )


def check_narrow_sums(step: Step) -> None:
    """Asserts for one traced step that its own code has no long sum that a CPU adds up in bfloat16 or float16.

    Warns of other long sums: their terms are added in float32, but the result is rounded.
    """
    for op in everything(step.operations):
        if op.type not in _SUMS or (dtype := op.outputs[0].dtype) not in _TERMS:
            continue
        if (count := _terms(op)) <= _TERMS[dtype] or not is_own(op):
            continue
        text = f"{step.name} adds {count:,} terms in {dtype.name} ({op.type}) {line(op)}"
        if dtype in _SUMS[op.type]:
            raise AssertionError(
                f"{text}, one after the other on some devices: such a sum of {_TERMS[dtype]} equal terms grows no "
                "further. Add in float32: `tf.cast(x, tf.float32)`."
                + (" `tf.matmul` does so itself." if op.type == "Einsum" else "")
            )
        warnings.warn(
            f"{text}. TensorFlow adds in float32 and rounds the result: if a loss, a metric or another sum depends "
            "on it, use `tf.cast(x, tf.float32)`.",
            stacklevel=2,
        )


def _terms(op: Any) -> int:
    """Returns the number of terms of each sum that `op` computes; 0 if it is unknown."""
    x, y = op.inputs[0].shape, op.outputs[0].shape
    if op.type == "Einsum":
        return products_of(op) // (y.num_elements() or 1)
    if op.type in ("Softmax", "LogSoftmax"):
        return x[-1] or 0
    if op.type == "Cumsum":
        axis = tf.get_static_value(op.inputs[1])
        return 0 if axis is None else x[int(axis)] or 0
    return (x.num_elements() or 0) // (y.num_elements() or 1)


def _left_at(op: Any, dtype: tf.DType) -> Any:
    """Returns the operation at which the inputs of `op` left `dtype`; `None` if `core` widened them on purpose."""
    if any(x.dtype == dtype for x in op.inputs):  # TensorFlow multiplies bfloat16 by float32, in float32
        return op
    ahead, seen, first, deliberate = [op], set[str](), None, False
    while ahead:
        here = ahead.pop(0)
        for x in here.inputs:
            if not x.dtype.is_floating or x.dtype == dtype or x.op.name in seen:
                continue
            seen.add(x.op.name)
            if any(y.dtype == dtype for y in x.op.inputs):  # leaves it
                if is_own(x.op):
                    return x.op
                deliberate = True
            elif x.op.type not in _WEIGHTS and all(y.op.type == "Const" for y in x.op.inputs if y.dtype.is_floating):
                first = first or x.op  # made of integers, or drawn
            ahead.append(x.op)
    return None if deliberate else first


def check_float32(step: Step, except_for: Sequence[str]) -> None:
    """Asserts for one traced step that its own code computes in float32."""
    meant = {x.dtype for x in step.batch.values()} | {dtype for dtype in DETOURS if dtype.name in except_for}
    for path, variable in step.variables.items():
        assert variable.dtype not in DETOURS or variable.dtype in meant, (
            f"variable `{path}` is {variable.dtype.name}. {DETOURS[variable.dtype]}: make it of float32 values "
            "(`tf.Variable(tf.cast(x, tf.float32))`)."
        )
    needed = ancestors([step.loss.per_example.op])
    for op in step.operations:
        if op.name not in needed or not step.sources[op.name]:  # constants, positions
            continue
        for made in (op, *bodies(op)):
            for output in made.outputs:
                if output.dtype not in DETOURS or output.dtype in meant:
                    continue
                if not made.inputs or not is_own(made):  # layers choose their types deliberately
                    continue
                raise AssertionError(
                    f"{step.name} computes in {output.dtype.name} {line(made)}. {DETOURS[output.dtype]}. "
                    "Stay in float32 from the input to the loss; if that is intended: "
                    f'`except_for=["{output.dtype.name}"]`.'
                )
    assert step.loss.per_example.dtype == tf.float32 or step.loss.per_example.dtype in meant, (
        f"the loss of {step.name} is {step.loss.per_example.dtype.name}; return float32, which sums of many keep exact "
        "enough."
    )
