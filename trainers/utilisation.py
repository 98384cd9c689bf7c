"""How well a run uses what it runs on: the operations that it does in a second, of those that could be done."""

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

SECONDS = 0.2  # that measuring may take, beyond its first product
PRODUCTS = 4  # one after the other, so that a device is told once for all
SMALLEST, LARGEST, AT_ONCE = 16, 1024, 1e9  # sides of matrices, and operations of them in one measurement
BYTES, PASSES = 4 * 2**20, 50  # of a tensor that passes through memory, and how often it does
ABREAST, DEEP, ROUNDS = 20, 10, 50  # of operations on a few numbers, in a loop as a step's are


class Speeds(NamedTuple):
    """What devices have done at best in a second."""

    operations: float  # of products as large as a step's are on average
    bytes: float  # read and written by what has no product
    starts: float  # of operations, however small


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

        best = _best_seconds(multiply, matrix)
    return PRODUCTS * 2.0 * size**3 / best * max(len(gpus), 1)


def measured_speeds(devices: Sequence[str], *, operations: float) -> Speeds:
    """Returns what these devices can do, with products of so many `operations` each; it takes a second."""
    gpus = sum("GPU" in device for device in devices)
    side = min(max(round((operations / 2.0) ** (1 / 3)), SMALLEST), LARGEST)
    times = max(PRODUCTS, int(AT_ONCE / (2.0 * side**3)) // 4)
    with tf.device(devices[0]):
        x, matrix = tf.zeros([BYTES // 4]), tf.eye(side)

        def multiply(x: tf.Tensor) -> tf.Tensor:
            return _again(times, lambda y: tf.matmul(y, matrix), x)[0, 0]

        def pass_through(x: tf.Tensor) -> tf.Tensor:
            return _again(PASSES, lambda y: y * 0.5 + x, x)[0]

        def start(x: tf.Tensor) -> tf.Tensor:
            def some(y: tf.Tensor) -> tf.Tensor:
                parts = [y * float(i) for i in range(1, ABREAST + 1)]
                for _ in range(DEEP - 2):
                    parts = [parts[i] - parts[i - 1] for i in range(ABREAST)]
                return tf.add_n(parts)

            return _again(ROUNDS, some, x)[0]

        moved = 5 * BYTES * PASSES / _best_seconds(pass_through, x)  # a product reads and writes, a sum reads two
        starts = ABREAST * (DEEP - 1) * ROUNDS / _best_seconds(start, tf.zeros([64]))
        products = times * 2.0 * side**3 / _best_seconds(multiply, matrix)
    return Speeds(products * max(gpus, 1), moved * max(gpus, 1), starts)


def _again(times: int, body: Callable[[tf.Tensor], tf.Tensor], x: tf.Tensor) -> tf.Tensor:
    return tf.while_loop(lambda i, _: i < times, lambda i, y: (i + 1, body(y)), (0, x))[1]


def _best_seconds(fn: Callable[[tf.Tensor], tf.Tensor], x: tf.Tensor) -> float:
    """Times a traced `fn` of `x`, which returns one number."""
    traced: Any = tf.function(fn, autograph=False)
    traced(x).numpy()
    began, best = time.perf_counter(), float("inf")
    while (now := time.perf_counter()) - began < SECONDS:
        traced(x).numpy()
        best = min(best, time.perf_counter() - now)
    return best
