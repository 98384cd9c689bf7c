"""Peak rates of the machine, measured with the profile."""

import time
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from trainers.loop.speed import best_seconds, measured_peak

BYTES = 256 * 2**20  # of a tensor that no cache holds
CALLS = 200


class Limits(NamedTuple):
    """Peak rates of two cores or a device: operations and bytes a second, and the seconds of an empty call."""

    operations: float
    bytes: float
    call: float

    def said(self) -> str:
        """Formats the limits as a sentence."""
        return (
            f"multiplies matrices at {self.operations / 1e9:,.0f} GFLOP/s at best, reads and writes "
            f"{self.bytes / 1e9:,.0f} GB/s, and a call of nothing from Python takes {self.call * 1e6:,.0f} µs"
        )


def measured() -> Limits:
    """Measures the machine's limits in about a second."""
    large = tf.zeros([BYTES // 4])
    with tf.device("CPU:0"):
        passed = 2 * BYTES / best_seconds(lambda x: (x + 1.0)[0], large)
    return Limits(measured_peak(["CPU:0"]), passed, _call())


def _call() -> float:
    variable = tf.Variable(0, dtype=tf.int64)

    @tf.function(autograph=False, input_signature=[tf.TensorSpec([3], tf.int64)])
    def nothing(place: tf.Tensor) -> None:
        variable.assign(place[0])

    traced, place = nothing.get_concrete_function(), tf.zeros([3], tf.int64)
    seconds = []
    for _ in range(CALLS):
        began = time.perf_counter()
        traced(place)
        seconds.append(time.perf_counter() - began)
    return float(np.median(seconds))
