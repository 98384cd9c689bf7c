"""Overhead of a streamed source over `tf.data`.

    python -m benchmarks.streams [--pairs=9] [--page=benchmarks/notes/streams.md]

The same function yields 28 by 28 images in an endless epoch. A run stacks them into chunks of steps, and hashes them.
`tf.data` stacks the dataset's elements with one `batch`, and reads a generator with `from_generator`. The table shows
the process's CPU time, which depends least on other processes, and the time to begin. Each turn begins anew, because
TensorFlow's prefetching would count in another's turn.
"""

import argparse
import os
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf

from benchmarks.machine import machine
from benchmarks.pages import table, written
from benchmarks.pairs import interleaved, ratio
from core.data import Stream, StreamReader

ROWS, STEPS, CHUNKS = 32, 50, 8  # 12,800 examples a turn
HEAD = ["stream", "CPU time of 1,000 examples", "by `tf.data` alone", "ratio", "95 %", "an epoch begins in"]
_SPEC = {"image": tf.TensorSpec([28, 28, 1], tf.float32), "label": tf.TensorSpec([], tf.int32)}
_IMAGES = np.random.RandomState(0).rand(1000, 28, 28, 1).astype(np.float32)
_LABELS = np.arange(1000, dtype=np.int32) % 10


def plain(seed: int, epoch: int) -> tf.data.Dataset:
    """A dataset that only shuffles."""
    examples = tf.data.Dataset.from_tensor_slices({"image": _IMAGES, "label": _LABELS})
    return examples.shuffle(1000, seed=1000 * seed + epoch).repeat()


def shifted(seed: int, epoch: int) -> tf.data.Dataset:
    """A dataset that moves each image by some pixels."""

    def moved(number: tf.Tensor, example: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        by = tf.random.stateless_uniform([2], [1000 * seed + epoch, number], -3, 4, tf.int64)
        return {**example, "image": tf.roll(example["image"], by, [0, 1])}

    return plain(seed, epoch).enumerate().map(moved)


def generated(seed: int, epoch: int) -> Iterator[dict[str, Any]]:
    """A generator that moves each image by some pixels."""
    random = np.random.RandomState([seed, epoch])
    while True:
        for i in random.permutation(1000):
            yield {"image": np.roll(_IMAGES[i], random.randint(-3, 4, 2), (0, 1)), "label": _LABELS[i]}


STREAMS: dict[str, Callable[[int, int], Any]] = {
    "a dataset that shuffles": plain,
    "a dataset that moves images": shifted,
    "a generator that moves images": generated,
}


def main() -> None:
    """Prints a table, and writes it into a page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=9, help="turns of each (default: 9)")
    parser.add_argument("--page", type=Path, help="page that has this table")
    flags = parser.parse_args()
    about = machine()
    rows = [measured(name, pairs=flags.pairs) for name in STREAMS]
    said = f"{about['processor']}, {about['cores']} cores, load {about['load_before']}"
    found = f"{table(HEAD, rows)}\nMedians of {flags.pairs} pairs: {said}, TensorFlow {about['tensorflow']}.\n"
    print(found)
    if flags.page:
        flags.page.write_text(written(flags.page.read_text(), {"streams": found}))


def measured(name: str, *, pairs: int, chunks: int = CHUNKS) -> list[str]:
    """Returns a row of the table."""
    make = STREAMS[name]
    stream = Stream(make)
    assert stream.spec  # which a run does once, and which makes the first example
    turns = {"ours": _turn(lambda: _by_run(stream), chunks), "alone": _turn(lambda: _alone(make), chunks)}
    seconds = interleaved(turns, pairs=pairs)
    median, low, high = ratio(seconds["ours"], seconds["alone"])
    times = [1e6 * np.median(found) / (chunks * STEPS * ROWS) for found in (seconds["ours"], seconds["alone"])]
    begins = f"{1e3 * _beginning(make):.0f} ms"
    return [name, *(f"{time:.1f} ms" for time in times), f"{median:.2f}", f"{low:.2f} to {high:.2f}", begins]


def _turn(read: Callable[[], tf.data.Dataset], chunks: int) -> Callable[[], float]:
    """Returns a function that takes some chunks and looks at each."""

    def turn() -> float:
        began = time.process_time()
        for chunk in read().take(chunks):
            assert chunk["image"].shape == [STEPS, 1, ROWS, 28, 28, 1]
        return time.process_time() - began

    return turn


def _by_run(stream: Stream) -> tf.data.Dataset:
    reader = StreamReader(stream, global_batch_size=ROWS, microbatches=1, seed=0)
    return reader.reading(chunk_steps=STEPS).chunks(0)


def _alone(make: Callable[[int, int], Any]) -> tf.data.Dataset:
    made = make(0, 0)
    if not isinstance(made, tf.data.Dataset):
        made = tf.data.Dataset.from_generator(lambda: make(0, 0), output_signature=_SPEC)

    def stacked(chunk: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        return {name: tf.reshape(x, [STEPS, 1, ROWS, *x.shape[1:]]) for name, x in chunk.items()}

    return made.batch(STEPS * ROWS, drop_remainder=True).map(stacked).prefetch(1)


def _beginning(make: Callable[[int, int], Any]) -> float:
    """Returns the seconds until an epoch's first example exists."""
    took = []
    for epoch in range(5):
        began = time.perf_counter()
        next(iter(make(0, epoch)))
        took.append(time.perf_counter() - began)
    return float(np.median(took))


if __name__ == "__main__":
    main()
