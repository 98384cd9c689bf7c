"""Dynamic loss scaling: keeps small gradients of float16 from underflow (Micikevicius et al., 2018).

A float16 update multiplies its loss by a scale before differentiation, and divides the reduced float32 gradients by the
scale. Scales are powers of two, so both operations are exact. A step whose gradients overflow writes nothing, and
halves the scale. A series of finite steps doubles it. This is the rule of PyTorch's `GradScaler`, within limits.
"""

import math
from typing import NamedTuple

import tensorflow as tf

from core.engine.inspect_phase import LossSpec

LOSS_SCALE = "loss_scale"  # in names of variables and metrics
START, LEAST, MOST = 2.0**15, 1.0, 2.0**24  # of the scale
GROWTH_STEPS = 2000  # finite steps in a row, after which the scale doubles


class LossScale:
    """The variables of one update's loss scale. Make it in the strategy's scope."""

    def __init__(self) -> None:
        self.scale = tf.Variable(START, dtype=tf.float32, trainable=False, name="scale")
        self.good_steps = tf.Variable(0, dtype=tf.int64, trainable=False, name="good_steps")

    @property
    def variables(self) -> dict[str, tf.Variable]:
        """Returns the variables by name, for a checkpoint."""
        return {"scale": self.scale, "good_steps": self.good_steps}

    def can_fall(self) -> tf.Tensor:
        """Says whether a lower scale can help against gradients that aren't finite. A scale of 1 can't be lowered."""
        return self.scale.read_value() > LEAST

    def overflows(self, norm: tf.Tensor) -> tf.Tensor:
        """Says whether a step with this gradient `norm` lowers the scale."""
        return ~tf.math.is_finite(norm) & self.can_fall()

    def advance(self, *, applied: tf.Tensor, overflowed: tf.Tensor) -> None:
        """Sets the scale for the next step. A step that is neither `applied` nor `overflowed` changes nothing."""
        scale, good_steps = next_scale(self.scale.read_value(), self.good_steps.read_value(), applied, overflowed)
        self.scale.assign(scale)
        self.good_steps.assign(good_steps)


def next_scale(
    scale: tf.Tensor, good_steps: tf.Tensor, applied: tf.Tensor, overflowed: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the scale and the number of finite steps in a row after a step that was `applied` or `overflowed`."""
    good_steps += tf.cast(applied, good_steps.dtype)
    grows = good_steps >= GROWTH_STEPS
    scale = tf.where(grows, tf.minimum(scale * 2.0, MOST), scale)
    scale = tf.where(overflowed, tf.maximum(scale * 0.5, LEAST), scale)
    return scale, tf.where(overflowed | grows, tf.zeros_like(good_steps), good_steps)


class Factor(NamedTuple):
    """The number by which an update's loss is multiplied: the loss scale, times a `share`.

    A loss with weights is divided by the total weight only after the reduction. Until then, float16 sums over all rows
    and tokens could overflow. So `share` divides by the number of values, rounded to a power of two.
    """

    loss_scale: LossScale
    share: float = 1.0

    @classmethod
    def of(cls, loss_scale: LossScale, spec: LossSpec, parts: int) -> "Factor":
        """Returns the factor of a loss that is computed in `parts` (microbatches times replicas), each like `spec`."""
        if not (spec.weighted and spec.values):
            return cls(loss_scale)
        return cls(loss_scale, 2.0 ** -round(math.log2(spec.values * parts)))

    def read(self) -> tf.Tensor:
        """Returns the current factor, a float32 scalar."""
        return self.loss_scale.scale.read_value() * self.share
