"""Cost of replicas, microbatches and chunks of steps: `python -m benchmarks.replicas [--pairs=15]`

On one machine without GPUs, two virtual replicas have no more cores than one device: they can at best match it.
Networks and trainer have a user's settings, input included.
"""

import argparse
import functools
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
from core import layers, losses
from core.data import ArraySource, Source
from core.distribution import mirrored, one_device
from core.distribution.virtual_devices import make_virtual_cpus
from core.optimizers import Transform, adam, adamw, sgd
from core.random import Rng
from core.task import Batch, Loss, Task, Update
from models.classifiers.mlp import MlpClassifier
from trainers.experiment import Experiment
from trainers.settings import Settings
from trainers.trainer import Trainer
from trainers.workdir import Workdir

TIME, WIDTH, WORDS = 64, 128, 256


class Transformer(Task):
    """Two blocks of causal attention and a perceptron that predict the next word."""

    def __init__(self, *, rng: Rng):
        super().__init__()
        self.words = layers.Embedding(WORDS, WIDTH, rng=rng.fold("words"))
        self.norms = [layers.LayerNorm(WIDTH) for _ in range(4)]
        self.attention = [
            layers.MultiHeadAttention(WIDTH, 4, causal=True, rng=rng.fold("attention").fold(i)) for i in range(2)
        ]
        self.inner = [layers.Linear(WIDTH, 4 * WIDTH, rng=rng.fold("inner").fold(i)) for i in range(2)]
        self.outer = [layers.Linear(4 * WIDTH, WIDTH, rng=rng.fold("outer").fold(i)) for i in range(2)]

    def phases(self) -> list[Update]:
        return [Update("net", loss=self.loss, trains=self, optimizer=adamw(1e-3))]

    def loss(self, batch: Batch, rng: Rng) -> Loss:
        x = self.words(batch["words"][:, :-1])
        for i in range(2):
            x += self.attention[i](self.norms[2 * i](x))
            x += self.outer[i](tf.nn.gelu(self.inner[i](self.norms[2 * i + 1](x))))
        return Loss(tf.reduce_mean(losses.softmax_cross_entropy(self.words.logits(x), batch["words"][:, 1:]), 1))


def mlp(*, rng: Rng, rule: Callable[[float], Transform] = adamw) -> MlpClassifier:
    return MlpClassifier(rng=rng, sizes=[784, 1024, 1024, 10], optimizer=rule(1e-3))


def small_mlp(*, rng: Rng) -> MlpClassifier:
    return MlpClassifier(rng=rng, sizes=[784, 128, 10], optimizer=adamw(1e-3))


def main() -> None:
    """Prints one row per comparison."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=15, help="rounds of interleaved runs (default: 15)")
    flags = parser.parse_args()
    make_virtual_cpus(2)
    random = np.random.RandomState(0)
    images = {"image": random.rand(2048, 28, 28, 1).astype("float32"), "label": random.randint(0, 10, 2048)}
    pictures = ArraySource(images, name="random images")
    text = ArraySource({"words": random.randint(0, WORDS, [2048, TIME + 1])}, name="random words")
    table = Table("what", "peer", "ms a step", "peer's", "time of pairs", "95 % interval")
    works: dict[str, tuple[Callable[..., Task], Source, int, int]] = {
        "MLP 784-128-10, batch 256": (small_mlp, pictures, 256, 50),
        "MLP 784-1024-1024-10, batch 1024": (mlp, pictures, 1024, 5),
        "the same, batch 256": (mlp, pictures, 256, 5),
        "the same, without decay": (functools.partial(mlp, rule=adam), pictures, 256, 5),
        "the same, plain descent": (functools.partial(mlp, rule=sgd), pictures, 256, 5),
        "transformer, 2 blocks of 128, batch 32": (Transformer, text, 32, 5),
    }
    for name, (task, source, batch, chunk_steps) in works.items():
        settings: dict[str, Any] = {"global_batch_size": batch, "chunk_steps": chunk_steps}
        compare(
            table,
            flags.pairs,
            (f"{name}: 2 replicas", task, source, {**settings, "strategy": mirrored(replicas=2)}),
            ("one device", task, source, {**settings, "strategy": one_device("CPU:0")}),
        )
    micro: dict[str, Any] = {"chunk_steps": 2, "strategy": one_device("CPU:0")}
    compare(
        table,
        flags.pairs,
        ("8 microbatches of 64", mlp, pictures, {**micro, "global_batch_size": 512, "microbatches": 8}),
        ("1 of 64", mlp, pictures, {**micro, "global_batch_size": 64, "chunk_steps": 16}),
    )
    compare(
        table,
        flags.pairs,
        ("chunks of 50 steps", small_mlp, pictures, {"global_batch_size": 32, "chunk_steps": 50}),
        ("1 step a call", small_mlp, pictures, {"global_batch_size": 32, "chunk_steps": 1}),
    )
    Console(width=120).print(table)


Side = tuple[str, Callable[..., Task], Source, dict[str, Any]]


def compare(table: Table, pairs: int, ours: Side, peer: Side) -> None:
    """Compares the times in which both sides train on as many examples."""
    with tempfile.TemporaryDirectory() as scratch:
        sides = [ours, peer]
        examples = 2 * max(side[3]["global_batch_size"] * side[3]["chunk_steps"] for side in sides)
        runs = {side[0]: run_of(side, examples, Path(scratch) / str(i)) for i, side in enumerate(sides)}
        seconds = interleaved(runs, pairs=pairs)
    median, low, high = ratio(seconds[ours[0]], seconds[peer[0]])
    step = [f"{np.median(seconds[s[0]]) / (examples / s[3]['global_batch_size']) * 1e3:.2f}" for s in sides]
    table.add_row(ours[0], peer[0], *step, f"{median:.2f}", f"{low:.2f} to {high:.2f}")


def run_of(side: Side, examples: int, workdir: Path) -> Callable[[], object]:
    """Returns a function that trains on `examples` more examples per call."""
    _, task, source, settings = side
    settings = dict(settings)
    experiment = Experiment(task=task, train_source=source, strategy=settings.pop("strategy", None))
    quiet = Settings(steps=10**9, log_every=10**8, evaluate_every=None, checkpoint_every=None, **settings)
    trainer = Trainer(experiment, Workdir(workdir), quiet)
    chunks: Iterator[Any] = trainer.input.chunks_from(0)
    trainer.warm_up(next(chunks))
    trainer.state.step = trainer.input.chunk_steps
    calls = examples // (trainer.settings.global_batch_size * trainer.input.chunk_steps)

    def run() -> None:
        for _ in range(calls):
            trainer.advance(next(chunks))
        trainer.progress.bad_step.numpy()  # until all of it is done

    return run


if __name__ == "__main__":
    main()
