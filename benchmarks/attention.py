"""Attention in tiles against all scores at once: `python -m benchmarks.attention [--pairs=9] [--batch=4]`

Each run is a forward and a backward pass. Memory is the peak of a new process, minus its memory before the first run.
Errors are relative to the largest value of dense attention in float64: of the result, of gradients, and of the gradient
of their squares.
"""

import argparse
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf
from rich.console import Console
from rich.table import Table

from benchmarks.pairs import interleaved, ratio
from core.layers import attend
from core.layers.attend import LONG
from core.random import Rng

RNG = Rng.from_seed(0)
TIME, HEADS, SIZE, WINDOW = 2048, 8, 64, 256
KINDS: dict[str, dict[str, Any]] = {
    "all keys": {},
    "causal": {"causal": True},
    f"window of {WINDOW}": {"causal": True, "window": WINDOW},
}
FORMS: dict[str, dict[str, Any]] = {"tiles": {}, "dense": {"chunk_size": None}}


def main() -> None:
    """Prints one table of ratios, and one of the times of a window in longer and longer sequences."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=9, help="rounds of interleaved runs (default: 9)")
    parser.add_argument("--batch", type=int, default=4, help="rows (default: 4)")
    flags = parser.parse_args()
    columns = "time, ratio", "95 % interval", "memory, MB", "ratio", "result", "gradients", "second order"
    table = Table(f"{TIME} positions", *columns)
    for kind, options in KINDS.items():
        runs = {form: gradients(flags.batch, TIME, **options, **more) for form, more in FORMS.items()}
        seconds = interleaved(runs, pairs=flags.pairs)
        median, low, high = ratio(seconds["tiles"], seconds["dense"])
        memory = [peak(kind, form, flags.batch) for form in FORMS]
        found = [f"{median:.2f}", f"{low:.2f} to {high:.2f}", f"{memory[0]} to {memory[1]}"]
        table.add_row(kind, *found, f"{memory[0] / memory[1]:.2f}", *(f"{x:.0e}" for x in errors(**options)))
    Console(width=120).print(table)
    times = [1024, 2048, 4096, 8192]
    windowed = {str(time): gradients(1, time, causal=True, window=WINDOW) for time in times}
    seconds = interleaved(windowed, pairs=flags.pairs)
    table = Table(f"window of {WINDOW}", "ms", f"ratio to {times[0]}")
    for time in times:
        taken = seconds[str(time)]
        table.add_row(
            f"{time} positions", f"{np.median(taken) * 1e3:.0f}", f"{ratio(taken, seconds[str(times[0])])[0]:.2f}"
        )
    Console(width=120).print(table)


def inputs(batch: int, time: int, dtype: tf.DType = tf.float32) -> list[tf.Tensor]:
    """Draws queries, keys and values."""
    return [tf.cast(RNG.fold(name).normal([batch, time, HEADS, SIZE]), dtype) for name in "qkv"]


def gradients(batch: int, time: int, **options: Any) -> Callable[[], Any]:
    """Traces a forward and backward pass."""
    given = inputs(batch, time)

    @tf.function(autograph=False)
    def run(*given: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(given)
            loss = tf.reduce_sum(tf.sin(attend(*given, **options)))
        return tape.gradient(loss, given)

    return lambda: [np.asarray(gradient) for gradient in run(*given)]


def errors(**options: Any) -> list[float]:
    """Returns the largest errors of tiles in the result, the gradients, and the gradients of the gradients' squares."""

    @tf.function(autograph=False)
    def run(given: list[tf.Tensor], chunk_size: int | None) -> Any:
        with tf.GradientTape() as outer:
            outer.watch(given)
            with tf.GradientTape() as tape:
                tape.watch(given)
                q, k, v = given
                y = attend(q, k, v, chunk_size=chunk_size, **options)
                loss = tf.reduce_sum(tf.sin(y))
            first = tape.gradient(loss, given)
            squares = tf.add_n([tf.reduce_sum(tf.square(x)) for x in first])
        return [y], first, outer.gradient(squares, given)

    exact = run(inputs(1, TIME, tf.float64), None)
    found = run(inputs(1, TIME), LONG)
    return [
        max(float(np.abs(np.subtract(x, y)).max() / np.abs(y).max()) for x, y in zip(a, b, strict=True))
        for a, b in zip(found, exact, strict=True)
    ]


def peak(kind: str, form: str, batch: int) -> int:
    """Returns the growth of a new process in MB."""
    code = f"from benchmarks.attention import grow; grow({kind!r}, {form!r}, {batch})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return int(done.stdout.split()[-1])


def grow(kind: str, form: str, batch: int) -> None:
    """Runs three passes in this process; prints by how many MB its memory has grown at the peak."""
    run = gradients(batch, TIME, **KINDS[kind], **FORMS[form])
    gradients(1, 16)()  # loads kernels
    before = resident("VmRSS")
    for _ in range(3):
        run()
    print(round((resident("VmHWM") - before) / 1e3))


def resident(name: str) -> int:
    """Returns an entry of this process' status, in kB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(name)).split()[1])


if __name__ == "__main__":
    main()
