"""Gradient implementations of convolutions, by shape: `python -m benchmarks.convolutions [--pairs=9] [--write]`

Each run is a forward and a backward pass with one of four gradients: TensorFlow's own, convolutions of transposed
tensors, one matrix product of patches, and those of `core.layers.Conv2D`, whose rule picks one of the first two. The
rule's time over the fastest one's is what autotuning per machine would gain. `TF_ENABLE_ONEDNN_OPTS` in the environment
selects oneDNN's kernels or TensorFlow's own.
"""

import argparse
import os
from collections.abc import Callable
from typing import Any, NamedTuple

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf
from rich.console import Console
from rich.table import Table

from benchmarks import pages
from benchmarks.machine import machine
from benchmarks.pairs import interleaved, ratio
from core.layers import Conv2D
from core.layers.conv import convolve_image
from core.random import Rng
from core.tensorflow_private import uses_onednn

RULE = "`Conv2D`"
RNG = Rng.from_seed(0)
HEAD = [
    "batch, size, channels, kernel",
    "TensorFlow's, ms",
    "convolutions, ms",
    "patches, ms",
    RULE,
    "/ fastest",
    "95 %",
]


class Shape(NamedTuple):
    """A convolution of square images that keeps their size."""

    batch: int
    size: int
    channels: int
    outputs: int
    kernel: int

    def __str__(self) -> str:
        return f"{self.batch}, {self.size}×{self.size}, {self.channels} to {self.outputs}, {self.kernel}×{self.kernel}"


SHAPES = (  # shapes of the peer benchmarks' works, and of a step's first and last layers
    Shape(64, 32, 3, 32, 3),
    Shape(64, 32, 32, 32, 3),
    Shape(64, 16, 32, 64, 3),
    Shape(64, 16, 64, 64, 3),
    Shape(64, 8, 64, 128, 3),
    Shape(1, 64, 3, 32, 7),
    Shape(1, 64, 32, 3, 7),
    Shape(1, 16, 128, 128, 3),
    Shape(16, 32, 64, 64, 1),
)


def own(x: tf.Tensor, w: tf.Tensor) -> tf.Tensor:
    """Convolves with TensorFlow's own gradients."""
    return tf.nn.conv2d(x, w, 1, "SAME")


def turned(x: tf.Tensor, w: tf.Tensor) -> tf.Tensor:
    """Convolves, with gradients that are convolutions of transposed tensors."""
    around = [((k - 1) // 2, k // 2) for k in w.shape[:2]]
    return convolve_image(tf.pad(x, [(0, 0), *around, (0, 0)]), w)


def patches(x: tf.Tensor, w: tf.Tensor) -> tf.Tensor:
    """Convolves as one matrix product of patches."""
    height, width, channels, outputs = w.shape
    around = [((k - 1) // 2, k // 2) for k in (height, width)]
    padded, size = tf.pad(x, [(0, 0), *around, (0, 0)]), x.shape[1]
    rows = [padded[:, i : i + size, j : j + size] for i in range(height) for j in range(width)]
    return tf.matmul(tf.concat(rows, -1), tf.reshape(w, [height * width * channels, outputs]))


FORMS: dict[str, Callable[[tf.Tensor, tf.Tensor], tf.Tensor]] = {"own": own, "turned": turned, "patches": patches}


def main() -> None:
    """Prints a row for each shape."""
    parser = argparse.ArgumentParser(description=__doc__.partition(":")[0])
    parser.add_argument("--pairs", type=int, default=9, help="rounds of interleaved runs (default: 9)")
    parser.add_argument("--write", action="store_true", help="update the table in benchmarks/notes/performance.md")
    flags = parser.parse_args()
    tf.get_logger().setLevel("ERROR")  # each gradient is traced for each shape on purpose
    kernels = "oneDNN's" if uses_onednn() else "its own"
    about = machine()
    title = f"TensorFlow {about['tensorflow']} with {kernels} kernels, {about['cores']} cores of {about['processor']}"
    rows, table = [], Table(*HEAD, title=title)
    for shape in SHAPES:
        rows.append(row_of(shape, pairs=flags.pairs))
        table.add_row(*rows[-1])
    Console(width=140).print(table)
    if flags.write:
        text = f"{title}:\n\n{pages.table(HEAD, rows)}"
        pages.write({f"convolutions, {kernels}": text})


def row_of(shape: Shape, *, pairs: int) -> list[str]:
    """Measures every gradient of one shape."""
    layer = Conv2D(shape.channels, shape.outputs, shape.kernel, bias=False, rng=RNG)
    x = RNG.normal([shape.batch, shape.size, shape.size, shape.channels])
    runs = {name: pass_of(form, x, layer.w) for name, form in FORMS.items()}
    runs[RULE] = pass_of(lambda x, _: layer(x), x, layer.w)
    right = runs["own"]()
    for name, run in runs.items():
        for found, expected in zip(run(), right, strict=True):
            np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-3 * np.abs(expected).max(), err_msg=name)
    seconds = interleaved(runs, pairs=pairs)
    medians = {name: float(np.median(found)) for name, found in seconds.items()}
    fastest = min(FORMS, key=lambda name: medians[name])
    median, low, high = ratio(seconds[RULE], seconds[fastest])
    times = [f"{1e3 * medians[name]:.2f}" for name in (*FORMS, RULE)]
    return [str(shape), *times, f"{median:.2f}", f"{low:.2f} to {high:.2f}"]


def pass_of(form: Callable[[tf.Tensor, tf.Tensor], tf.Tensor], x: tf.Tensor, w: tf.Variable) -> Callable[[], Any]:
    """Returns a forward and backward pass that returns once its gradients are computed."""

    @tf.function(autograph=False)
    def run() -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = tf.reduce_sum(tf.sin(form(x, tf.convert_to_tensor(w))))
        return tape.gradient(loss, [x, w])

    return lambda: [np.asarray(gradient) for gradient in run()]


if __name__ == "__main__":
    main()
