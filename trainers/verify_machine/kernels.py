"""`python -m trainers.verify_machine.kernels` prints the largest errors of the device's kernels as JSON.

Each operation runs on the first device in float32 and on the CPU in float64. The error is the largest difference,
relative to the largest value.
"""

import json
from collections.abc import Callable

import numpy as np
import tensorflow as tf

from core.distribution import one_device
from core.layers import attend
from core.losses import softmax_cross_entropy

Inputs = dict[str, tf.Tensor]
SEED = np.random.RandomState(0)


def _draw(*shape: int) -> np.ndarray:
    return SEED.normal(size=shape)


def _with_gradient(loss: Callable[..., tf.Tensor]) -> Callable[[Inputs], list[tf.Tensor]]:
    """Returns a function that computes a loss and its gradients for all float inputs."""

    def computed(inputs: Inputs) -> list[tf.Tensor]:
        floats = {name: x for name, x in inputs.items() if x.dtype.is_floating}
        with tf.GradientTape() as tape:
            tape.watch(floats)
            value = loss(**inputs)
        return [value, *tape.gradient(value, floats).values()]

    return computed


KERNELS: dict[str, tuple[dict[str, np.ndarray], Callable[[Inputs], list[tf.Tensor]]]] = {
    "matmul": (
        {"a": _draw(256, 512), "b": _draw(512, 128)},
        _with_gradient(lambda a, b: tf.reduce_mean(tf.square(a @ b))),
    ),
    "convolution": (
        {"x": _draw(8, 17, 17, 16), "w": _draw(3, 3, 16, 32)},
        _with_gradient(lambda x, w: tf.reduce_mean(tf.square(tf.nn.conv2d(x, w, 2, "SAME")))),
    ),
    "transposed convolution": (
        {"x": _draw(8, 9, 9, 32), "w": _draw(4, 4, 16, 32)},
        _with_gradient(
            lambda x, w: tf.reduce_mean(tf.square(tf.nn.conv2d_transpose(x, w, [8, 18, 18, 16], 2, "SAME")))
        ),
    ),
    "attention": (
        {"q": _draw(4, 33, 4, 16), "k": _draw(4, 33, 4, 16), "v": _draw(4, 33, 4, 16)},
        _with_gradient(lambda q, k, v: tf.reduce_mean(tf.square(attend(q, k, v, causal=True)))),
    ),
    "cross entropy": (
        {"logits": 10.0 * _draw(64, 1000), "labels": SEED.randint(0, 1000, 64)},
        _with_gradient(lambda logits, labels: tf.reduce_mean(softmax_cross_entropy(logits, labels))),
    ),
    "sums": (
        {"x": 100.0 + _draw(1000, 1000)},
        _with_gradient(lambda x: tf.reduce_mean(tf.math.reduce_variance(x, axis=1))),
    ),
    "gathers": (
        {"table": _draw(500, 64), "rows": SEED.randint(0, 500, 3000)},
        _with_gradient(lambda table, rows: tf.reduce_mean(tf.square(tf.reduce_sum(tf.gather(table, rows), axis=0)))),
    ),
}


def errors() -> dict[str, float]:
    with one_device().scope():
        device = tf.zeros([]).device
    return {name: _error(inputs, computed, device) for name, (inputs, computed) in KERNELS.items()}


def _error(inputs: dict[str, np.ndarray], computed: Callable[[Inputs], list[tf.Tensor]], device: str) -> float:
    def results(place: str, dtype: tf.DType) -> list[np.ndarray]:
        with tf.device(place):
            given = {name: tf.constant(x, dtype if x.dtype.kind == "f" else tf.int32) for name, x in inputs.items()}
            return [tf.convert_to_tensor(x).numpy() for x in tf.function(computed, autograph=False)(given)]

    pairs = zip(results(device, tf.float32), results("CPU:0", tf.float64), strict=True)
    return max(float(np.max(np.abs(here - peer)) / np.max(np.abs(peer))) for here, peer in pairs)


if __name__ == "__main__":
    print(json.dumps(errors()))
