"""`python -m benchmarks.averaged_statistics [--seeds=3] [--only=NAME ...]`: what averaged weights need of `BatchNorm`.

Trains a convolutional network with three `BatchNorm`s on the digits, and prints the accuracy and loss on the test
digits, means over seeds, of four pairs of weights and statistics. Prints the table of
benchmarks/notes/averaged_statistics.md.
"""

import argparse
import itertools
import tempfile
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import tensorflow as tf

from core import layers, losses, metrics
from core.data import digits
from core.module import named_variables
from core.optimizers import Transform, adam, chain, ema, lookahead, polyak, sam, schedule_free_adamw
from core.random import Rng
from core.task import Batch, Loss, Statistics, Task, Update
from core.task.statistics import averaged, commit
from trainers import Experiment, Settings, train

RATE, STEPS, BATCH = 0.03, 400, 32
RULES: Mapping[str, Callable[[], Transform]] = {
    "ema(0.9)": lambda: chain(adam(RATE), ema(0.9)),
    "ema(0.99)": lambda: chain(adam(RATE), ema(0.99)),
    "ema(0.999)": lambda: chain(adam(RATE), ema(0.999)),
    "ema(profile='power', std=0.1)": lambda: chain(adam(RATE), ema(profile="power", std=0.1)),
    "polyak": lambda: chain(adam(RATE), polyak()),
    "lookahead": lambda: lookahead(adam(RATE)),
    "sam": lambda: sam(adam(RATE)),
    "schedule_free_adamw": lambda: schedule_free_adamw(RATE),
}
HEAD = [
    "rule",
    "raw weights and statistics",
    "averaged weights, raw statistics",
    "**as evaluation reads**",
    "recomputed",
]


class Digits(Task):
    """Classifies 8x8 images."""

    def __init__(self, *, rng: Rng, optimizer: Transform):
        super().__init__()
        sizes = [1, 16, 16, 32]
        self.convolutions = [
            layers.Conv2D(a, b, 3, rng=rng.fold(i)) for i, (a, b) in enumerate(itertools.pairwise(sizes))
        ]
        self.norms = [layers.BatchNorm(size) for size in sizes[1:]]
        self.out = layers.Linear(sizes[-1], 10, rng=rng.fold("out"))
        self.optimizer = optimizer

    def phases(self) -> Sequence[Update]:
        return [Update("net", loss=self.loss, trains=self, optimizer=self.optimizer)]

    def loss(self, batch: Batch, rng: Rng | None) -> Loss:
        return self.judged(batch, Statistics())

    def evaluate(self, batch: Batch) -> Loss:
        return self.judged(batch)

    def judged(self, batch: Batch, statistics: Statistics | None = None) -> Loss:
        x = batch["image"]
        for convolution, norm in zip(self.convolutions, self.norms, strict=True):
            x = tf.nn.relu(norm(convolution(x), statistics=statistics))
        logits = self.out(tf.reduce_mean(x, [1, 2]))
        per_example = losses.softmax_cross_entropy(logits, batch["label"])
        return Loss(per_example, metrics={"accuracy": metrics.accuracy(logits, batch["label"])}, statistics=statistics)


def figures(rule: Callable[[], Transform], seed: int) -> list[tuple[float, float]]:
    """Returns `(accuracy, loss)` of the four columns."""

    def make(*, rng: Rng) -> Digits:
        return Digits(rng=rng, optimizer=rule())

    held_out, source = _whole("test"), digits()
    experiment = Experiment(task=make, train_source=source, eval_source=digits("test"), seed=seed)
    settings = Settings(steps=STEPS, global_batch_size=BATCH, chunk_steps=20, evaluate_every=None)
    with tempfile.TemporaryDirectory() as folder:
        run = train(experiment, settings, folder, quiet=True)
        raw, read = run.experiment.task, run.task
        assert isinstance(read, Digits)
        found = [_judged(raw, held_out), (0.0, 0.0), _judged(read, held_out)]
        moving = named_variables(raw)
        for path, variable in averaged(read).items():
            variable.assign(moving[path])
        found[1] = _judged(read, held_out)
        for norm in read.norms:
            norm.moving_weight.assign(0.0)
        sums = read.loss(_whole("train"), None).statistics
        assert sums
        commit(sums.averages())
        return [*found, _judged(read, held_out)]


def _whole(split: str) -> Batch:
    source = digits("test") if split == "test" else digits()
    return source.gather(tf.range(len(source), dtype=tf.int64))


def _judged(task: Task, batch: Batch) -> tuple[float, float]:
    loss = task.evaluate(batch)
    accuracy = loss.metrics["accuracy"]
    assert tf.is_tensor(accuracy)
    return float(tf.reduce_mean(accuracy)), float(tf.reduce_mean(loss.per_example))


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", action="append", choices=list(RULES), help="one of the averages; repeat for more")
    flags = parser.parse_args(arguments)
    print(f"| {' | '.join(HEAD)} |\n|{' --- |' * len(HEAD)}", flush=True)
    for name in flags.only or RULES:
        columns = np.mean([figures(RULES[name], seed) for seed in range(flags.seeds)], axis=0)
        print(f"| `{name}` | {' | '.join(f'{accuracy:.3f} ({loss:.3g})' for accuracy, loss in columns)} |", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
