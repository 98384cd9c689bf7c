"""The `Loss` that a step function returns, its checks, and its weighted sums and means."""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import tensorflow as tf

from core.metrics import State
from core.precision import EVALUATE as EVALUATE  # in place of a phase's name
from core.precision import widened
from core.task.statistics import Statistics

Batch = Mapping[str, tf.Tensor]
Sums = Mapping[str, Any]  # "weight", "loss" and each metric: weighted sums, or an additive state

GRADIENT_NORM = "gradient_norm"
OVERFLOWED = "overflowed_steps"
NOISE_SCALE = "noise_scale"

# Names that a line of metrics uses for something else.
RESERVED = frozenset(
    {
        *("loss", "weight", GRADIENT_NORM, OVERFLOWED, NOISE_SCALE),
        *("step", "split", "examples_per_second", "step_seconds", "data_wait"),
    }
)


class Loss(NamedTuple):
    """The result of a step function: one loss per example, without a mean. The engine divides by the total weight."""

    per_example: tf.Tensor  # [batch], or [batch, ...] together with a weight of the same shape
    weight: tf.Tensor | None = None  # one per value; values with weight zero are ignored
    metrics: Mapping[str, tf.Tensor | State] = {}  # tensors shaped and weighted like `per_example`, or additive states
    outputs: Mapping[str, tf.Tensor] = {}  # values [batch, ...], which later phases of the step find in their batch
    statistics: Statistics | None = None  # of normalisation layers; the engine updates their averages


class Overflowed(NamedTuple):
    """The number of steps whose float16 gradients overflowed, and the sum of their total weights. It is additive."""

    steps: tf.Tensor
    weight: tf.Tensor

    def result(self) -> tf.Tensor:
        """Returns the number of overflowed steps."""
        return self.steps


def weighted_sums(loss: Loss) -> tuple[tf.Tensor, dict[str, Any]]:
    """Returns the loss's sum, to differentiate, and `{"weight": ..., "loss": ..., METRIC: ...}`, weighted sums."""
    if loss.weight is None:
        weight = None
        total = tf.cast(tf.size(loss.per_example), tf.float32)
    else:
        weight = tf.cast(loss.weight, tf.float32)
        total = tf.reduce_sum(weight)

    def weigh(x: tf.Tensor) -> tf.Tensor:
        x = tf.cast(x, tf.float32)
        if weight is None:
            return tf.reduce_sum(x)
        # Selects instead of multiplying: nothing may leak from values with weight zero, not even a NaN.
        return tf.reduce_sum(tf.where(weight != 0.0, weight * x, 0.0))

    objective = weigh(loss.per_example)
    metrics = {name: widened(x) if isinstance(x, State) else weigh(x) for name, x in loss.metrics.items()}
    return objective, {"weight": total, "loss": objective, **metrics}


def means(sums: Sums) -> dict[str, float]:
    """Returns the metrics of `sums`: weighted means and results of additive states. Without weight they are NaN."""
    weight = float(sums["weight"])
    # Steps that overflowed have a loss, but no gradient norm.
    weights = {GRADIENT_NORM: weight - float(sums[OVERFLOWED].weight)} if OVERFLOWED in sums else {}
    figures: dict[str, float] = {}
    for name, x in sums.items():
        if hasattr(x, "result"):  # a `State`; `isinstance` would take a hundred times as long, in each metric line
            result = tf.nest.map_structure(tf.convert_to_tensor, x).result()
            named = result.items() if isinstance(result, Mapping) else [("", result)]
            figures |= {f"{name}/{suffix}".rstrip("/"): float(value) for suffix, value in named}
        elif name != "weight":
            divisor = weights.get(name, weight)
            figures[name] = float(x) / divisor if divisor else math.nan
    return figures


def subject(name: str) -> str:
    """Returns the subject of an error message: "phase `NAME`", or "`evaluate`" alone, which isn't a phase."""
    return f"`{name}`" if name == EVALUATE else f"phase `{name}`"


def checked(loss: Any, name: str, rows: int | None) -> Loss:
    """Checks `loss` and returns it: one value per example, with weight and metrics of the same shape."""
    if not isinstance(loss, Loss):
        raise TypeError(
            f"{subject(name)} returned {type(loss).__name__}; a step function returns `Loss(per_example, ...)` from "
            "`core.task`, with one value per example."
        )
    for key, value in {"per_example": loss.per_example, "weight": loss.weight, **loss.metrics}.items():
        absent = key == "weight" and value is None
        if not isinstance(key, str) or not (absent or tf.is_tensor(value) or isinstance(value, State)):
            raise TypeError(
                f"{subject(name)} returned a `Loss` with `{key}` = {value!r}; `per_example`, `weight` and metrics are "
                "tensors, and metrics have names."
            )
    for key in RESERVED & loss.metrics.keys():
        raise ValueError(f"{subject(name)} returned a metric named `{key}`; the engine uses that name: rename it.")
    shape = loss.per_example.shape
    if shape.rank == 0:
        raise ValueError(
            f"{subject(name)} returned a scalar loss (shape {shape}). Return one value per example and let the engine "
            "take the mean: `Loss(per_example)` instead of `Loss(tf.reduce_mean(per_example))`. A scalar regulariser "
            "is added to every row: `Loss(per_example + penalty)`."
        )
    if rows is None and shape[0] is not None and not tf.executing_eagerly():
        raise ValueError(
            f"{subject(name)} returned a loss of shape {shape} for any number of rows; the first axis of `per_example` "
            "is the batch: return one value per example, not a mean over them."
        )
    if rows is not None and not shape.is_fully_defined():
        raise ValueError(
            f"{subject(name)} returned a loss of shape {shape}, which isn't known while tracing (`tf.boolean_mask` and "
            "the like have such results). Keep all rows and give those that don't count a `weight` of zero; or, if "
            f"you know the shape, declare it: `tf.ensure_shape(per_example, [{rows}, ...])`."
        )
    if rows is not None and shape[0] != rows:
        raise ValueError(
            f"{subject(name)} returned a loss of shape {shape} for a batch of {rows} rows; the first axis of "
            "`per_example` is the batch: return one value (or one row of weighted values) per example."
        )
    if shape.rank != 1 and loss.weight is None:
        raise ValueError(
            f"{subject(name)} returned a loss of shape {shape} without a `weight`. Give the weight of each value: "
            "`Loss(per_token, weight=mask)` with a weight of the same shape, or sum the inner axes to one value per "
            "example."
        )
    tensors = {key: x for key, x in loss.metrics.items() if not isinstance(x, State)}
    others = {"weight": loss.weight, **{f"metrics[{key!r}]": x for key, x in tensors.items()}}
    for key, value in others.items():
        if value is not None and not (value.shape.rank == shape.rank and value.shape.is_compatible_with(shape)):
            raise ValueError(
                f"{subject(name)} returned `{key}` of shape {value.shape} with `per_example` of shape {shape}; both "
                "hold one value per example, so give both the same shape."
            )
    return loss
