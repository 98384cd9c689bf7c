"""Transfer of a tuned rate to wider networks: `python -m benchmarks.widths [--model=mlp] [--page=NOTES]`

Tunes AdamW's first rate, which falls linearly to zero, at width 64: with muP and without. Then trains networks of 256
and 1,024 with all rates. The last column compares the loss at the rate tuned at 64 with the best loss of that width.
"""

import argparse
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from benchmarks.machine import machine
from benchmarks.pages import table, written
from core.data import Source, digits, topics
from core.optimizers import Optimizer, Transform, adamw, linear, mup
from core.random import Rng
from core.task import Batch, Task, Update
from core.task.loss import weighted_sums
from models.classifiers.mlp import MlpClassifier
from models.language.task import LanguageModel

BASE, WIDTHS = 64, (64, 256, 1024)
HEAD_SIZE = 16
HEAD = ["network", "rates", "width", "best rate", "best loss", "loss at the rate of 64", "times the best"]


class Model(NamedTuple):
    """A network to train: how it is made by width, its source, its rates and the length of its training."""

    make: Callable[..., Task]
    plain: Sequence[str]  # input and output layers
    source: Callable[[], Source]
    rates: Sequence[float]
    steps: int
    rows: int
    seeds: int


def perceptron(width: int, *, rng: Rng, rule: Transform, base_width: int | None) -> Task:
    """Makes an MLP of three hidden layers for the digits."""
    return MlpClassifier(rng=rng, sizes=[64, width, width, width, 10], base_width=base_width, optimizer=rule)


def transformer(width: int, *, rng: Rng, rule: Transform, base_width: int | None) -> Task:
    """Makes a language model of two layers, on 32 bytes at a time."""
    return LanguageModel(
        rng=rng,
        vocabulary=257,
        context=32,
        num_layers=2,
        size=width,
        num_heads=width // HEAD_SIZE,
        base_width=base_width,
        optimizer=rule,
    )


def powers(first: int, last: int) -> list[float]:
    """Returns powers of 2 from 2^first to 2^last."""
    return [2.0**i for i in range(first, last + 1)]


MODELS = {
    "mlp": Model(perceptron, ["layers/0/w", "layers/3/w"], digits, powers(-9, -5), 200, 32, 2),
    "transformer": Model(
        transformer, ["tokens/w", "positions/w"], lambda: topics("train", length=32), powers(-11, -7), 200, 16, 1
    ),
}


def losses(model: Model, width: int, *, scaled: bool) -> npt.NDArray[np.float64]:
    """Returns the mean training loss of the last quarter of the steps, for each rate: a mean over seeds."""
    rate = tf.Variable(0.0)  # one trace serves all rates

    def made(seed: int) -> Task:
        falling = linear(1.0, 0.0, steps=model.steps)
        rule = adamw(lambda step: rate.read_value() * falling(step), weight_decay=0.0)
        rule = mup(rule, base_width=BASE, plain=model.plain) if scaled else rule
        rng = Rng.from_seed(seed).fold("init")
        return model.make(width, rng=rng, rule=rule, base_width=BASE if scaled else None)

    task, source = made(0), model.source()
    (update,) = task.phases()
    assert isinstance(update, Update)
    optimizer = Optimizer(update.optimizer, update.variables())

    @tf.function(autograph=False, jit_compile=True)
    def step(i: tf.Tensor, batch: Batch) -> tf.Tensor:
        with tf.GradientTape() as tape:
            total, sums = weighted_sums(update.loss(batch, Rng.from_seed(0).fold(i)))
            mean = total / sums["weight"]
        optimizer.apply(tape.gradient(mean, optimizer.parameters))
        return mean

    found = np.zeros([model.seeds, len(model.rates)])
    for seed in range(model.seeds):
        start = [v.numpy() for v in made(seed).variables]
        order = np.random.default_rng(seed).permutation(len(source))
        for j, value in enumerate(model.rates):
            rate.assign(value)
            for variable, x in zip(task.variables, start, strict=True):
                variable.assign(x)
            optimizer.restart()
            seen = []
            for i in range(model.steps):
                rows = np.take(order, range(i * model.rows, (i + 1) * model.rows), mode="wrap")
                seen.append(float(step(tf.constant(i), source.gather(tf.constant(rows, tf.int64)))))
            found[seed, j] = np.mean(seen[-(model.steps // 4) :])
    return np.mean(np.nan_to_num(found, nan=np.inf), axis=0)


def rows(name: str, widths: Sequence[int]) -> list[list[str]]:
    """Returns the rows of one network, with muP and without."""
    model, made = MODELS[name], []
    for scaled in (True, False):
        at_base = 0
        for width in widths:
            began = time.perf_counter()
            found = losses(model, width, scaled=scaled)
            best = int(np.argmin(found))
            at_base = best if width == widths[0] else at_base
            print(
                f"{name} {width} {'muP' if scaled else 'plain'}: {time.perf_counter() - began:.0f} s; {found}",
                flush=True,
            )
            made.append(
                [
                    name,
                    "muP" if scaled else "one for all",
                    f"{width:,}",
                    f"{model.rates[best]:.2g}",
                    f"{found[best]:.4f}",
                    f"{found[at_base]:.4f}",
                    f"{found[at_base] / found[best]:.3f}",
                ]
            )
    return made


def main() -> None:
    """Prints a table, and writes it into a page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=[*MODELS, "all"], default="all", help="the network (default: all)")
    parser.add_argument("--widths", type=int, nargs="+", default=WIDTHS, help="the first one is tuned at")
    parser.add_argument("--page", type=Path, help="page that has this table")
    flags = parser.parse_args()
    about = machine()
    names = [*MODELS] if flags.model == "all" else [flags.model]
    found = [row for name in names for row in rows(name, flags.widths)]
    text = (
        f"{table(HEAD, found)}\nMean training loss of the last quarter of 200 steps. {about['processor']}, "
        f"{about['cores']} cores, TensorFlow {about['tensorflow']}.\n"
    )
    print(text)
    if flags.page:
        flags.page.write_text(written(flags.page.read_text(), {"widths": text}))


if __name__ == "__main__":
    main()
