"""Counts the floating-point operations of a traced step, in matmuls and convolutions alone."""

import math
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from core.estimate.graphs import CHOICES, called_by, merged, needed
from core.estimate.places import Place, place_of


def operations_of(graph: Any) -> float:
    """Returns the number of additions and multiplications of a traced function, on all devices together.

    A loop with a known number of iterations counts that often. A chunk's own loop counts once, so the result is that of
    one step. A phase that runs every n steps counts 1/n per step.
    """
    return sum(operations_by_place(graph).values())


def operations_by_place(graph: Any) -> dict[Place, float]:
    """Returns `{Place: number}` of additions and multiplications, for a trace made in `noting_places`."""
    found = defaultdict[Place, float](float)
    for op, times in performed(graph):
        if products := products_of(op):
            found[place_of(op)] += 2.0 * times * products
    return found


def performed(graph: Any) -> Iterator[tuple[tf.Operation, float]]:
    """Yields `(operation, how often it runs)` for a traced function and the functions that it calls.

    In a condition, only the branch with the most floating-point operations counts.
    """
    ops = needed(graph)
    again = {name.rpartition(":")[0] for name in merged(ops)}
    for op in ops:
        if op.name not in again:
            yield op, 1.0
            for called, often in run_by(op):
                for each, times in performed(called):
                    yield each, times * often


def run_by(op: tf.Operation) -> list[tuple[Any, float]]:
    """Returns `[(graph, how often)]` of the functions that `op` calls. In a condition, the costliest branch counts."""
    called = called_by(op)
    if op.type not in CHOICES:
        return [(each.graph, each.times) for each in called]
    graph = max((each.graph for each in called), key=operations_of)
    return [(graph, 1.0 / _every(op.inputs[0]))]


def products_of(op: tf.Operation) -> int:
    """Returns the number of multiply-adds in a matmul or convolution. Other operations have 0."""
    count = _PRODUCTS.get(op.type)
    return count(op) if count else 0


def _every(predicate: tf.Tensor) -> int:
    """Returns n if a condition is true in every n-th step, else 1."""
    if predicate.op.type != "Equal" or predicate.op.inputs[0].op.type != "FloorMod":
        return 1
    every = tf.get_static_value(predicate.op.inputs[0].op.inputs[1])
    return 1 if every is None else int(every)


def _size(tensor: tf.Tensor) -> int:
    return tensor.shape.num_elements() or 0


def _matrices(op: tf.Operation) -> int:
    """Counts a matmul's multiply-adds: the size of the result times the size of the contracted axis."""
    transposed = op.get_attr("transpose_a" if op.type == "MatMul" else "adj_x")
    return _size(op.outputs[0]) * (op.inputs[0].shape[-2 if transposed else -1] or 0)


def _einsum(op: tf.Operation) -> int:
    """Counts an einsum's multiply-adds: the product of the sizes of all its indices."""
    equation = op.get_attr("equation").decode()
    terms = equation.partition("->")[0].split(",")
    sizes: dict[str, int] = {}
    for term, tensor in zip(terms, op.inputs, strict=True):
        before, dots, after = term.partition("...")
        shape = tensor.shape.as_list()
        sizes |= dict(zip(before, shape, strict=False))
        sizes |= dict(zip(reversed(after), reversed(shape), strict=False)) if dots else {}
        middle = shape[len(before) : len(shape) - len(after)] if dots else []
        sizes["..."] = max(sizes.get("...", 1), math.prod(x or 0 for x in middle))
    return math.prod(x or 0 for x in sizes.values()) if len(terms) > 1 else 0


def _convolution(kernel: Callable[[tf.Operation], tf.Tensor], result: Callable[[tf.Operation], tf.Tensor]) -> Any:
    """Counts multiply-adds of a convolution or its gradient: size of `result(op)` times window of `kernel(op)`."""

    def count(op: tf.Operation) -> int:
        window = kernel(op).shape
        if op.type.startswith("Depthwise"):
            return _size(result(op)) * math.prod(window[:2])
        return _size(result(op)) * math.prod(window[:-1])

    return count


_PRODUCTS: dict[str, Callable[[tf.Operation], int]] = {
    "MatMul": _matrices,
    "BatchMatMul": _matrices,
    "BatchMatMulV2": _matrices,
    "Einsum": _einsum,
}
for _kind in ("Conv2D", "Conv3D", "DepthwiseConv2dNative"):
    _PRODUCTS[_kind] = _convolution(lambda op: op.inputs[1], lambda op: op.outputs[0])
for _kind in ("Conv2DBackpropInput", "Conv3DBackpropInputV2", "DepthwiseConv2dNativeBackpropInput"):
    _PRODUCTS[_kind] = _convolution(lambda op: op.inputs[1], lambda op: op.inputs[2])
for _kind in ("Conv2DBackpropFilter", "Conv3DBackpropFilterV2", "DepthwiseConv2dNativeBackpropFilter"):
    _PRODUCTS[_kind] = _convolution(lambda op: op.outputs[0], lambda op: op.inputs[2])
