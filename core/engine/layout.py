"""Layouts of values: sharded over the replicas by rows, or whole on one device. Moves values between both.

Values between phases are split as the trainer splits the batch, `[microbatches, rows, ...]`. Global microbatch m holds
rows m * R to (m + 1) * R of the global batch, where R is its number of rows. Replica i of n has part i of n of each
microbatch.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import tensorflow as tf

from core.distribution.exchange import Exchange
from core.task import Batch


class Placed(NamedTuple):
    """A value with its layout: sharded over the replicas, or whole on one device."""

    value: Any
    replicated: bool


def moved(value: Placed, replicated: bool, exchange: Exchange, phase: str) -> Any:
    """Scatters `value` to the replicas if `replicated`. Otherwise gathers it onto one device."""
    if value.replicated == replicated:
        return value.value
    if exchange.replicas == 1:
        return value.value if replicated else exchange.first(value.value)
    return exchange.split(value.value, phase) if replicated else exchange.gather(value.value, phase)


def cut(values: Batch, microbatches: int) -> dict[str, tf.Tensor]:
    """Reshapes `values` to another number of microbatches: neighbours are joined or split."""
    return {key: _cut(x, microbatches) for key, x in values.items()}


def _cut(x: tf.Tensor, microbatches: int) -> tf.Tensor:
    if x.shape[0] == microbatches:
        return x
    return tf.reshape(x, [microbatches, x.shape[0] * x.shape[1] // microbatches, *x.shape[2:]])


def shape_of(values: Mapping[str, Any]) -> tuple[int, int]:
    """Returns the first two sizes of the values, `(microbatches, rows)`."""
    microbatches, rows = next(iter(values.values())).shape[:2]
    return microbatches, rows
