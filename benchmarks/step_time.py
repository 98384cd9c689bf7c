"""Time per training step, against two hand-written loops: `python -m benchmarks.step_time [--pairs=15] [--compile]`

Model, batches and optimizer are the same. One peer calls `next(iterator)` inside its graph loop, as most tutorials do.
The other runs over the trainer's own chunks, with Adam written out or as a fused kernel. Times include input.
"""

import argparse
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf
from rich.console import Console
from rich.table import Table

from benchmarks.pairs import interleaved, ratio
from core.data import ArraySource, Source, digits
from core.optimizers import adamw
from models.classifiers.mlp import MlpClassifier
from trainers.experiment import Experiment
from trainers.settings import Settings
from trainers.trainer import Trainer
from trainers.workdir import Workdir

BATCH, CHUNK, CHUNKS_A_RUN, RATE, DECAY = 32, 50, 10, 1e-3, 1e-2


def main() -> None:
    """Prints one row per model and peer."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=15, help="rounds of interleaved runs (default: 15)")
    parser.add_argument("--compile", action="store_true", help="the chunk as one XLA program, on both sides")
    flags = parser.parse_args()
    random = np.random.RandomState(0)
    images, labels = random.randint(0, 256, [60000, 28, 28, 1]).astype("uint8"), random.randint(0, 10, 60000)
    sources = {
        "digits_mlp": (digits("train"), [64, 128, 10]),
        "mnist_mlp": (ArraySource({"image": images, "label": labels}, name="random, of MNIST's size"), [784, 128, 10]),
    }
    table = Table("model", "peer", "ours, µs a step", "peer, µs a step", "ratio of pairs", "95 % interval")
    for name, (source, sizes) in sources.items():
        with tempfile.TemporaryDirectory() as scratch:
            trainer = make_trainer(source, sizes, Path(scratch), compile=flags.compile)
            runs = {
                "ours": ours(trainer),
                "next(iterator) in the graph": iterator_loop(source, sizes),
                "the same stacked chunks": stacked_loop(trainer, sizes, compile=flags.compile),
                "the same, Adam by its kernel": stacked_loop(trainer, sizes, compile=flags.compile, kernel=True),
            }
            seconds = interleaved(runs, pairs=flags.pairs)
        for peer in list(runs)[1:]:
            median, low, high = ratio(seconds["ours"], seconds[peer])
            per_step = [f"{np.median(seconds[key]) / (CHUNK * CHUNKS_A_RUN) * 1e6:.0f}" for key in ("ours", peer)]
            table.add_row(name, peer, *per_step, f"{median:.2f}", f"{low:.2f} to {high:.2f}")
    Console(width=120).print(table)


def make_trainer(source: Source, sizes: list[int], workdir: Path, *, compile: bool) -> Trainer:
    """Builds the trainer with a user's settings, without hooks or files."""

    def task(*, rng: Any) -> MlpClassifier:
        return MlpClassifier(rng=rng, sizes=sizes, optimizer=adamw(RATE, weight_decay=DECAY))

    experiment = Experiment(task=task, train_source=source)
    settings = Settings(
        steps=10**9, global_batch_size=BATCH, chunk_steps=CHUNK, compile=compile,
        log_every=10**8, evaluate_every=None, checkpoint_every=None,
    )  # fmt: skip
    return Trainer(experiment, Workdir(workdir), settings)


def ours(trainer: Trainer) -> Callable[[], object]:
    """Returns the trainer's own loop."""
    chunks: Iterator[Any] = trainer.input.chunks_from(0)
    trainer.warm_up(next(chunks))
    trainer.state.step = CHUNK

    def run() -> None:
        for _ in range(CHUNKS_A_RUN):
            trainer.advance(next(chunks))

    return run


class HandWritten:
    """The same model and optimizer, written out."""

    def __init__(self, sizes: list[int], *, kernel: bool = False):
        self.kernel = kernel
        random = np.random.RandomState(0)
        self.inputs, hidden, outputs = sizes
        w1 = random.randn(self.inputs, hidden).astype("float32") * (2 / self.inputs) ** 0.5
        w2 = random.randn(hidden, outputs).astype("float32") * (2 / hidden) ** 0.5
        self.parameters = [tf.Variable(x) for x in (w1, tf.zeros([hidden]), w2, tf.zeros([outputs]))]
        self.m = [tf.Variable(tf.zeros_like(v)) for v in self.parameters]
        self.v = [tf.Variable(tf.zeros_like(v)) for v in self.parameters]
        self.count = tf.Variable(0, dtype=tf.int64)

    def step(self, image: tf.Tensor, label: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        w1, b1, w2, b2 = self.parameters
        with tf.GradientTape() as tape:
            logits = tf.nn.relu(tf.reshape(image, [BATCH, self.inputs]) @ w1 + b1) @ w2 + b2
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=label, logits=logits)
            loss = tf.reduce_mean(losses)
        gradients = tape.gradient(loss, self.parameters)
        t = tf.cast(self.count.assign_add(1), tf.float32)
        right = tf.cast(tf.equal(tf.argmax(logits, 1, tf.int32), tf.cast(label, tf.int32)), tf.float32)
        if self.kernel:
            for parameter, m, v, g in zip(self.parameters, self.m, self.v, gradients, strict=True):
                parameter.assign_sub(RATE * DECAY * parameter)
                tf.raw_ops.ResourceApplyAdam(
                    var=parameter.handle, m=m.handle, v=v.handle, grad=g, lr=RATE, beta1=0.9, beta2=0.999,
                    beta1_power=0.9**t, beta2_power=0.999**t, epsilon=1e-8,
                )  # fmt: skip
            return loss, tf.reduce_mean(right)
        correct_m, correct_v = 1 - 0.9**t, 1 - 0.999**t
        for parameter, m, v, g in zip(self.parameters, self.m, self.v, gradients, strict=True):
            m.assign(0.9 * m + 0.1 * g)
            v.assign(0.999 * v + 0.001 * tf.square(g))
            update = m / correct_m / (tf.sqrt(v / correct_v) + 1e-8) + DECAY * parameter
            parameter.assign_sub(RATE * update)
        return loss, tf.reduce_mean(right)


def iterator_loop(source: Source, sizes: list[int]) -> Callable[[], object]:
    """Returns a shuffled, batched, prefetched data set, read inside the graph loop."""
    model = HandWritten(sizes)
    examples = source.gather(tf.range(len(source), dtype=tf.int64))
    data = tf.data.Dataset.from_tensor_slices((examples["image"], examples["label"]))
    batches = data.shuffle(10_000, seed=0).repeat().batch(BATCH, drop_remainder=True).prefetch(tf.data.AUTOTUNE)
    iterator = iter(batches)

    @tf.function
    def loop(iterator: Any) -> tuple[tf.Tensor, tf.Tensor]:
        total, right = 0.0, 0.0
        for _ in tf.range(CHUNK):
            loss, accuracy = model.step(*next(iterator))
            total, right = total + loss, right + accuracy
        return total, right

    return lambda: [loop(iterator) for _ in range(CHUNKS_A_RUN)]


def stacked_loop(trainer: Trainer, sizes: list[int], *, compile: bool, kernel: bool = False) -> Callable[[], object]:
    """Returns the trainer's chunks, and a graph loop over them."""
    model = HandWritten(sizes, kernel=kernel)
    chunks: Iterator[Any] = trainer.input.chunks_from(0)

    @tf.function(jit_compile=compile or None)
    def loop(image: tf.Tensor, label: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        total, right = 0.0, 0.0
        decode = trainer.input.decode or (lambda values: values)
        for i in tf.range(CHUNK):
            batch = decode({"image": image[i, 0], "label": label[i, 0]})
            loss, accuracy = model.step(batch["image"], batch["label"])
            total, right = total + loss, right + accuracy
        return total, right

    def run() -> None:
        for _ in range(CHUNKS_A_RUN):
            chunk = next(chunks)
            loop(chunk["image"], chunk["label"])

    return run


if __name__ == "__main__":
    main()
