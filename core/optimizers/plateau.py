"""Learning-rate reduction on a plateau of the loss."""

from collections.abc import Mapping
from typing import Any

import gin
import tensorflow as tf

from core.arguments import check_count, check_not_negative, check_size, is_scheduled
from core.optimizers.scheduled import schedulable
from core.optimizers.transform import Rates, State, Tensors, Transform


@gin.configurable
@schedulable
def reduce_on_plateau(
    *,
    factor: float = 0.1,
    patience: int = 10,
    cooldown: int = 0,
    relative_tolerance: float = 1e-4,
    absolute_tolerance: float = 0.0,
    accumulate: int = 1,
    min_scale: float = 0.0,
) -> Transform:
    """Scales updates, so put it after a rule: `chain(sgd(0.1), reduce_on_plateau())`. Needs the loss.

    The means of `accumulate` losses are compared. After `patience` means without an improvement beyond the tolerances,
    the scale is multiplied by `factor`. Then the next `cooldown` means don't count towards `patience`.
    """
    if not is_scheduled(factor) and not 0.0 < factor < 1.0:
        raise ValueError(f"`factor` is {factor!r}; it makes updates smaller: use a number in (0, 1).")
    check_size(patience=patience, accumulate=accumulate)
    check_count(cooldown=cooldown)
    check_not_negative(relative_tolerance=relative_tolerance, absolute_tolerance=absolute_tolerance)
    check_not_negative(min_scale=min_scale)
    if not is_scheduled(relative_tolerance) and relative_tolerance > 1.0:
        raise ValueError(f"`relative_tolerance` is {relative_tolerance!r}; use a number in [0, 1].")

    def init(params: Tensors) -> State:
        start = {"scale": 1.0, "best": float("inf"), "mean": 0.0}
        counts = {slot: {"": tf.zeros([], tf.int32)} for slot in ("looks", "waited", "cooling")}
        return {slot: {"": tf.constant(x, tf.float32)} for slot, x in start.items()} | counts

    def update(
        gradients: Tensors, state: State, params: Tensors, *, step: tf.Tensor, value: tf.Tensor | None = None
    ) -> tuple[Tensors, State]:
        if value is None:
            raise ValueError(
                "`value` is missing; `reduce_on_plateau` looks at the loss: `apply(gradients, value=loss)`."
            )
        old = {slot: values[""] for slot, values in state.items()}
        seen = tf.cast(old["looks"], tf.float32)
        mean = (seen * old["mean"] + tf.cast(value, tf.float32)) / (seen + 1.0)
        looked = tf.equal(old["looks"] + 1, accumulate)
        better = mean < (1.0 - relative_tolerance) * old["best"] - absolute_tolerance
        cooling = old["cooling"] > 0
        waited = tf.where(better | cooling, 0, old["waited"] + 1)
        reduced = tf.equal(waited, patience)
        after = {
            "scale": tf.where(reduced, tf.maximum(old["scale"] * factor, min_scale), old["scale"]),
            "best": tf.where(better, mean, old["best"]),
            "waited": tf.where(reduced, 0, waited),
            "cooling": tf.where(cooling, old["cooling"] - 1, tf.where(reduced, cooldown, 0)),
        }
        new = {slot: tf.where(looked, x, old[slot]) for slot, x in after.items()}
        new |= {"looks": tf.where(looked, 0, old["looks"] + 1), "mean": tf.where(looked, 0.0, mean)}
        updates = {path: tf.cast(new["scale"], u.dtype) * u for path, u in gradients.items()}
        return updates, {slot: {"": x} for slot, x in new.items()}

    def rates(before: Rates, state: State, params: Mapping[str, Any], *, step: tf.Tensor) -> Rates:
        return {name: state["scale"][""] * rate for name, rate in before.items()}

    return Transform("reduce_on_plateau", init, update, rates=rates)
