"""A product of a traced step, by all that its speed depends on: so it can be done again without the step."""

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from core.estimate.memory import bytes_of
from core.estimate.operations import performed, products_of


class Operand(NamedTuple):
    """What a product is given, zeros as good as others; or a shape, which has to be right."""

    dtype: tf.DType
    shape: tuple[int, ...]
    values: tuple[int, ...] | None  # of a shape

    def made(self) -> tf.Tensor:
        """Returns such a tensor."""
        return tf.zeros(self.shape, self.dtype) if self.values is None else tf.constant(self.values, self.dtype)


class Product(NamedTuple):
    """A kind of operation, its attributes as TensorFlow writes them, and its operands."""

    kind: str
    attributes: tuple[tuple[str, bytes], ...]
    operands: tuple[Operand, ...]
    operations: int  # of one
    bytes: int  # that it reads and makes

    def of(self, operands: Sequence[tf.Tensor]) -> tf.Tensor:
        """Multiplies these, in the function that is traced just now; shapes are written into it."""
        graph: Any = tf.compat.v1.get_default_graph()
        given = [x if asked.values is None else asked.made() for x, asked in zip(operands, self.operands, strict=True)]
        attributes = {name: tf.compat.v1.AttrValue.FromString(written) for name, written in self.attributes}
        return graph.create_op(self.kind, given, attrs=attributes).outputs[0]


def products_in(graph: Any) -> Counter[Product | None]:
    """Counts the floating-point operations of a traced function by the product that does them.

    None stands for products of which something isn't known before they are done.
    """
    found: dict[Product | None, float] = {}
    for op, times in performed(graph):
        if products := products_of(op):
            product = _product(op, 2 * products)
            found[product] = found.get(product, 0.0) + 2.0 * times * products
    return Counter({product: round(operations) for product, operations in found.items()})


def _product(op: tf.Operation, operations: int) -> Product | None:
    tensors = [*op.inputs, *op.outputs]
    if not all(x.shape.is_fully_defined() for x in tensors):
        return None
    attributes = op.node_def.attr
    said = tuple((name, attributes[name].SerializeToString()) for name in sorted(attributes) if name[0] != "_")
    return Product(op.type, said, tuple(_operand(op, x) for x in op.inputs), operations, sum(map(bytes_of, tensors)))


def _operand(op: tf.Operation, x: tf.Tensor) -> Operand:
    is_shape = x.dtype.is_integer and len(x.shape) == 1  # which a gradient of a convolution is told
    return Operand(x.dtype, tuple(x.shape), tuple(op.outputs[0].shape) if is_shape else None)
