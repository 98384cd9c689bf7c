"""How well a run uses what it runs on: the operations that it does in a second, of those that could be done."""

import time
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

SECONDS = 0.2  # that measuring may take, beyond its first product
PRODUCTS = 4  # one after the other, so that a device is told once for all


def measured_peak(devices: Sequence[str]) -> float:
    """Returns how many operations in a second these devices have done at best, multiplying large matrices in float32.

    CPU devices of one process share its cores: they count as one.
    """
    gpus = [device for device in devices if "GPU" in device]
    size = 4096 if gpus else 1024
    with tf.device(devices[0]):
        matrix = tf.eye(size)

        def multiply(x: tf.Tensor) -> tf.Tensor:
            for _ in range(PRODUCTS):
                x = tf.matmul(x, matrix)
            return x[0, 0]

        best = best_seconds(multiply, matrix)
    return PRODUCTS * 2.0 * size**3 / best * max(len(gpus), 1)


def best_seconds(fn: Callable[..., tf.Tensor], *given: tf.Tensor, within: float = SECONDS) -> float:
    """Times a traced `fn`, which returns one number, again and again `within` so many seconds."""
    traced: Any = tf.function(fn, autograph=False).get_concrete_function(*map(tf.TensorSpec.from_tensor, given))
    traced(*given).numpy()
    began, best = time.perf_counter(), float("inf")
    while (now := time.perf_counter()) - began < within:
        traced(*given).numpy()
        best = min(best, time.perf_counter() - now)
    return best
