"""What this machine does in a second at best of what a step is made of."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import tensorflow as tf

from core.estimate import CACHED, Product
from trainers.utilisation import best_seconds, measured_peak

MOST_SECONDS, EACH_SECONDS = 3.0, 0.1  # for all products, and for one beyond its first time
ENOUGH = 0.95  # of a step's operations: the products that do the rest are many, and small
AT_ONCE, MOST_ROUNDS = 1e9, 200  # operations in one call, beside which it is nothing, and how often one is done in it
LARGE = 512 * 2**20  # bytes of a product that isn't done, lest there be no room
BYTES, PASSES = 4 * 2**20, 50  # of a tensor that passes through memory, and how often it does
IN_A_PASS = 5  # times a tensor: a product reads and writes, a sum reads two
ABREAST, DEEP, ROUNDS = 20, 10, 50  # of operations on a few numbers, in a loop as a step's are
CARRIED, OF_ONE = 50, 4  # values that a loop hands on, and what TensorFlow does for each in a round


class Speeds(NamedTuple):
    """What devices have done at best in a second."""

    operations: float  # of a step's own products
    bytes: float  # read and written by what has no product
    near: float  # the same of small tensors
    starts: float  # of operations, however small
    turns: float  # of what TensorFlow adds to run loops and choices


def measured_speeds(devices: Sequence[str], products: Mapping[Product | None, int]) -> Speeds:
    """Returns what these devices can do, of `products` that do so many operations of a step; it takes some seconds."""
    gpus = sum("GPU" in device for device in devices)
    with tf.device(devices[0]):
        few = tf.zeros([64])

        def start(x: tf.Tensor) -> tf.Tensor:
            def some(y: tf.Tensor) -> list[tf.Tensor]:
                parts = [y * float(i) for i in range(1, ABREAST + 1)]
                for _ in range(DEEP - 2):
                    parts = [parts[i] - parts[i - 1] for i in range(ABREAST)]
                return [tf.add_n(parts)]

            return _again(ROUNDS, some, [x])[0][0]

        def turn(x: tf.Tensor) -> tf.Tensor:
            return tf.add_n(_again(ROUNDS, lambda *ys: list(ys), [x * float(i) for i in range(CARRIED)]))[0]

        moved, near = _passing(BYTES, PASSES), _passing(CACHED // IN_A_PASS, 10 * PASSES)
        starts = ABREAST * (DEEP - 1) * ROUNDS / best_seconds(start, few)
        turns = OF_ONE * CARRIED * ROUNDS / best_seconds(turn, few)
        operations = _speed_of_all(products, devices)
    operations, moved, near = (speed * max(gpus, 1) for speed in (operations, moved, near))
    return Speeds(operations, moved, near, starts, turns)


def _passing(size: int, passes: int) -> float:
    """Returns how many bytes in a second are read and written of tensors of so many."""
    x = tf.zeros([size // 4])
    return IN_A_PASS * size * passes / best_seconds(lambda x: _again(passes, lambda y: [y * 0.5 + x], [x])[0][0], x)


def _speed_of_all(products: Mapping[Product | None, int], devices: Sequence[str]) -> float:
    """Returns how many operations in a second are done of products, or could be where a step has none.

    Of those that do most of the work each its own time is measured.
    """
    total, seconds, fastest = sum(products.values()), 0.0, measured_peak(devices[:1])
    left, enough, began = total, (1 - ENOUGH) * total, time.perf_counter()
    for product, operations in sorted(products.items(), key=lambda item: -item[1]):
        if left <= enough or time.perf_counter() - began > MOST_SECONDS:
            break
        if product is not None and product.bytes <= LARGE:
            speed = _speed_of(product)
            seconds, left, fastest = seconds + operations / speed, left - operations, max(fastest, speed)
    return total / (seconds + left / fastest) if total else fastest


def _speed_of(product: Product) -> float:
    """Returns how many operations in a second are done of one product, again and again."""
    rounds = round(min(max(AT_ONCE / product.operations, 1), MOST_ROUNDS))

    def multiply(*operands: tf.Tensor) -> tf.Tensor:
        again = _again(rounds - 1, lambda _: [product.of(operands)], [product.of(operands)])
        return tf.reshape(again[0], [-1])[0]

    operands = [x.made() for x in product.operands]
    return rounds * product.operations / best_seconds(multiply, *operands, within=EACH_SECONDS)


def _again(times: int, body: Callable[..., list[tf.Tensor]], carried: list[tf.Tensor]) -> list[tf.Tensor]:
    return list(tf.while_loop(lambda i, *_: i < times, lambda i, *ys: (i + 1, *body(*ys)), (0, *carried))[1:])
