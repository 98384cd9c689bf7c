"""Time that steps wait for examples: `python -m benchmarks.input_wait [--rounds=5] [--page=FILE]`

With examples in memory, this is the run's own metric `data_wait`, from trainings with the real command. With a folder
of 256 smooth random JPEG files (256x256 pixels, about 26 KB each), it is the rate at which chunks of 64 arrive. The
peer only decodes: the same files from memory, in as many threads as the machine has, either resized and scaled to [0,
1] as the source does, or left as bytes. The files are in the system's cache.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf

from benchmarks.machine import machine
from benchmarks.pages import table, written
from benchmarks.pairs import interleaved, ratio
from benchmarks.profile.works import CONFIGS, WORKS
from core.data import labelled_folders, train_chunks

CHECKOUT = Path(__file__).resolve().parent.parent
IN_MEMORY = {  # steps in all, steps between two lines, and further bindings
    "MLP 784-128-10, batch 32": ("mlp", 12_000, 2000, ()),
    "the same, compiled": ("mlp", 12_000, 2000, ("Trainer.compile = 'xla'",)),
    "conv net, batch 64": ("conv", 120, 20, ()),
    "transformer 4x128, batch 16": ("transformer", 90, 15, ()),
}
HEAD_IN_MEMORY = ["examples in memory", "a step", "waits for data"]
HEAD_JPEG = ["JPEG files", "images/s", "the limit", "time of the limit", "95 %", "bytes alone"]
SIDE, FILES, CHUNK, BATCH = 256, 256, 64, 32
SECONDS = 0.7  # of reading, a turn
THREADS = os.cpu_count() or 1


def main() -> None:
    """Prints two tables, and writes them into a page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5, help="turns of each way of reading (default: 5)")
    parser.add_argument("--page", type=Path, help="page with these tables, such as benchmarks/notes/performance.md")
    flags = parser.parse_args()
    about = machine()
    said = f"{about['processor']}, {about['cores']} cores, TensorFlow {about['tensorflow']}"
    with tempfile.TemporaryDirectory() as scratch:
        rows = files(Path(scratch), flags.rounds)
    tables = {
        "input_wait": f"{table(HEAD_IN_MEMORY, [*in_memory()])}\nMedians of five lines of metrics: {said}.\n",
        "jpeg": f"{table(HEAD_JPEG, rows)}\nMedians of {flags.rounds} turns of {SECONDS} s: {said}.\n",
    }
    print(*tables.values(), sep="\n")
    if flags.page:
        flags.page.write_text(written(flags.page.read_text(), tables))


def in_memory() -> Iterator[list[str]]:
    """Trains each work; yields the `data_wait` of its metric lines, except the first."""
    for what, (work, steps, every, besides) in IN_MEMORY.items():
        config, bindings = WORKS[work]
        common = [f"Trainer.steps = {steps}", f"Trainer.log_every = {every}", "Trainer.checkpoint_every = None"]
        with tempfile.TemporaryDirectory() as scratch:
            gin = Path(scratch, "work.gin")
            included = f"include {str(CONFIGS / config)!r}\n" if config else ""
            modules = "import benchmarks.profile.works\n"
            gin.write_text(f"{modules}{included}" + "\n".join([*bindings, *common, *besides]) + "\n")
            command = ["-m", "trainers.main", f"--gin_file={gin}", f"--workdir={scratch}/run"]
            subprocess.run([sys.executable, *command], cwd=CHECKOUT, check=True, capture_output=True)
            lines = [json.loads(line) for line in Path(scratch, "run", "metrics.jsonl").read_text().splitlines()]
        figures = [line for line in lines if line["split"] == "train"][1:]
        seconds, wait = (np.median([line[name] for line in figures]) for name in ("step_seconds", "data_wait"))
        yield [what, f"{1e3 * seconds:.2f} ms", f"{wait:.2%}"]


def files(folder: Path, rounds: int) -> list[list[str]]:
    """Measures images a second of the sources, and of their decoder alone."""
    contents = write_images(folder)
    rows = []
    for size in (SIDE, SIDE // 2):
        source = labelled_folders(str(folder), size=size)
        chunks = train_chunks(source, global_batch_size=BATCH, microbatches=1, chunk_steps=CHUNK // BATCH, seed=0)
        turns = {
            "ours": _turn(chunks, CHUNK),
            "limit": _turn(decoded(contents, size), 1),
            "bytes": _turn(decoded(contents, None), 1),
        }
        seconds = interleaved(turns, pairs=rounds)
        median, low, high = ratio(seconds["ours"], seconds["limit"])
        ours, limit, alone = (f"{1 / np.median(seconds[name]):,.0f}" for name in turns)
        name = "of the size that they have" if size == SIDE else f"resized to {size}x{size}"
        rows.append([name, ours, limit, f"{median:.2f}x", f"{low:.2f} to {high:.2f}", alone])
    return rows


def write_images(folder: Path) -> list[bytes]:
    """Writes smooth random images with a little noise into two folders; returns the files' contents."""
    random, contents = np.random.RandomState(0), []
    for number in range(FILES):
        smooth = tf.image.resize(random.rand(24, 24, 3), [SIDE, SIDE], method="bicubic")
        pixels = np.clip(255 * smooth.numpy() + 7 * random.randn(SIDE, SIDE, 1), 0, 255).astype(np.uint8)
        contents.append(tf.io.encode_jpeg(pixels, quality=88).numpy())
        place = folder / f"{number % 2}"
        place.mkdir(exist_ok=True)
        (place / f"{number}.jpg").write_bytes(contents[-1])
    return contents


def decoded(contents: Sequence[bytes], size: int | None) -> tf.data.Dataset:
    """Decodes these files repeatedly; without a `size`, to integer levels."""

    def one(content: tf.Tensor) -> tf.Tensor:
        pixels = tf.ensure_shape(tf.io.decode_jpeg(content, channels=3), [SIDE, SIDE, 3])
        if size is None:
            return pixels
        image = tf.cast(pixels, tf.float32)
        if size != SIDE:
            image = tf.image.resize(pixels, [size, size], method="bicubic", antialias=True)
        return image / 255.0

    options = tf.data.Options()
    options.autotune.enabled = False
    options.threading.private_threadpool_size = THREADS
    files = tf.data.Dataset.from_tensor_slices(list(contents)).repeat()
    return files.map(one, num_parallel_calls=THREADS).with_options(options)


def _turn(elements: tf.data.Dataset, images: int) -> Callable[[], float]:
    """Returns a function that reads for a while and returns the seconds per image."""

    def turn() -> float:
        iterator = iter(elements)  # closed with the turn: it would read ahead during the others'
        for _ in range(max(4, 2 * CHUNK // images)):
            next(iterator)
        began, count = time.perf_counter(), 0
        while time.perf_counter() - began < SECONDS:
            next(iterator)
            count += images
        return (time.perf_counter() - began) / count

    return turn


if __name__ == "__main__":
    main()
