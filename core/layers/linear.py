"""Affine and bilinear maps of the last axis."""

import tensorflow as tf

from core import initializers
from core.arguments import check_size
from core.casts import cast_to
from core.initializers import Initializer
from core.layers.products import product
from core.layers.shapes import add_bias, check_last, merge_leading
from core.module import Module
from core.random import Rng


class Linear(Module):
    """Computes `x @ w + b` over the last axis, [..., in_size] to [..., out_size]."""

    def __init__(
        self,
        in_size: int,
        out_size: int,
        *,
        rng: Rng,
        bias: bool = True,
        w_init: Initializer | None = None,
        b_init: Initializer | None = None,
    ):
        super().__init__()
        check_size(in_size=in_size, out_size=out_size)
        self.in_size = in_size
        w_init, b_init = w_init or initializers.lecun_normal(), b_init or initializers.zeros()
        self.w = tf.Variable(w_init(rng.fold("w"), [in_size, out_size]), name="w")
        self.b = tf.Variable(b_init(rng.fold("b"), [out_size]), name="b") if bias else None

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        return self.compute(x, self.w)

    def compute(self, x: tf.Tensor, w: tf.Tensor) -> tf.Tensor:
        """Returns the layer's output for `x`, computed with the kernel `w` in place of `self.w`."""
        check_last(self, x, self.in_size, "in_size")
        return linear(x, w, self.b)


class Bilinear(Module):
    """Computes `left @ w[:, :, k] @ right + b[k]` for each output `k`, over the last axes of `left` and `right`."""

    def __init__(
        self,
        left_size: int,
        right_size: int,
        out_size: int,
        *,
        rng: Rng,
        bias: bool = True,
        w_init: Initializer | None = None,
        b_init: Initializer | None = None,
    ):
        super().__init__()
        check_size(left_size=left_size, right_size=right_size, out_size=out_size)
        self.left_size, self.right_size, self.out_size = left_size, right_size, out_size
        # Initializers treat this kernel's first axis as its window, since both inputs contribute to one output.
        w_init, b_init = w_init or initializers.lecun_normal(), b_init or initializers.zeros()
        self.w = tf.Variable(w_init(rng.fold("w"), [left_size, right_size, out_size]), name="w")
        self.b = tf.Variable(b_init(rng.fold("b"), [out_size]), name="b") if bias else None

    def __call__(self, left: tf.Tensor, right: tf.Tensor) -> tf.Tensor:
        return self.compute(left, right, self.w)

    def compute(self, left: tf.Tensor, right: tf.Tensor, w: tf.Tensor) -> tf.Tensor:
        """Returns the output for `left` and `right`, computed with the kernel `w` in place of `self.w`."""
        check_last(self, left, self.left_size, "left_size", "left")
        check_last(self, right, self.right_size, "right_size", "right")
        if left.dtype != right.dtype:
            raise ValueError(
                f"`right` of `Bilinear` is {right.dtype.name}, and `left` {left.dtype.name}; give both in one dtype: "
                "`tf.cast(right, left.dtype)`."
            )
        if not left.shape[:-1].is_compatible_with(right.shape[:-1]):
            raise ValueError(
                f"`left` of `Bilinear` has shape {left.shape} and `right` {right.shape}; all axes but the last are "
                "those of the batch, and the same for both."
            )
        (left, leading), (right, _) = merge_leading(left, 1), merge_leading(right, 1)
        halfway = linear(left, tf.reshape(w, [self.left_size, self.right_size * self.out_size]))
        halfway = tf.reshape(halfway, [-1, self.right_size, self.out_size])
        y = tf.squeeze(product(tf.expand_dims(right, 1), halfway), 1)
        return tf.reshape(add_bias(y, self.b), [*leading, self.out_size])


def linear(x: tf.Tensor, w: tf.Tensor, b: tf.Tensor | None = None) -> tf.Tensor:
    """Returns `x @ w + b` over the last axis, in the dtype of `x`."""
    # One matmul over all rows: a batched one with a broadcast matrix is slower, and its gradient much slower.
    rows, leading = merge_leading(x, 1)
    y = add_bias(product(rows, cast_to(w, x.dtype)), b)
    return y if len(leading) == 1 else tf.reshape(y, [*leading, w.shape[-1]])
