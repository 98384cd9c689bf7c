"""`--mode=find_rate`: a learning-rate range test (Smith, 2017); trains on a copy, and keeps no weights."""

import copy
import functools
import math
from collections.abc import Sequence
from typing import NamedTuple

import gin
import tensorflow as tf
from rich.console import Console
from rich.table import Table

from core.cluster import is_chief
from core.disk import write_whole
from core.engine import ALL_WELL
from core.errors import ConfigurationError
from core.optimizers import Schedule
from trainers.gin_audit.statements import scoped
from trainers.performance.rehearsal import in_a_scratch_folder
from trainers.session import Session
from trainers.trainer import Trainer
from trainers.workdir import json_text

STEPS, ROWS = 200, 20  # of the test at most, and of the table
LOW, HIGH = 1e-3, 1e2  # times the configured rate
DECAY = 0.9  # of the average of losses
DIVERGED = 4.0  # times the lowest average loss: larger rates aren't tried
SAFE = 10.0  # the suggestion is so many times below the rate of the lowest loss
MOST_PLACES = 10_000  # steps at which a schedule is asked for its largest value
FILE = "find_rate.json"


class Bound(NamedTuple):
    """A `learning_rate` that gin binds: its name and its largest value in a run."""

    name: str
    rate: float


class Point(NamedTuple):
    """A step of the test: its multiple of the configured rates, its loss, and the average loss so far."""

    multiple: float
    loss: float
    average: float


def run(session: Session) -> int:
    """Trains with rates that rise from step to step. Prints the losses and a suggestion, and writes them to a file."""
    with in_a_scratch_folder(session) as folder:
        bound: list[Bound] = []
        trainer = session.trainer(bound=lambda: bound.extend(_raise_rates(session)))
        _check(trainer)
        points = _tested(trainer)
        found = suggestion(points)
        if is_chief():
            console = Console(highlight=False)
            console.print(_table(bound, points))
            console.print(_said(bound, points, found), soft_wrap=True)
            rates = {name: rate * found if found else None for name, rate in bound}
            figures = {"configured": dict(bound), "suggested": rates, "points": [p._asdict() for p in points]}
            write_whole({folder / FILE: json_text(figures).encode()})
            console.print(f"all losses are in `{folder / FILE}`", soft_wrap=True)
    return 0


def _raise_rates(session: Session) -> list[Bound]:
    """Replaces each `learning_rate` that gin binds by a rising one: its largest value times a factor common to all."""
    found = []
    steps = copy.deepcopy(gin.query_parameter("Trainer.steps"))
    for binding in session.configuration.bindings:
        if binding.is_macro or binding.parameter != "learning_rate":
            continue
        name = scoped(binding.scope, f"{binding.selector}.{binding.parameter}")
        with gin.config_scope(binding.scope or None):
            given = copy.deepcopy(gin.query_parameter(name))  # which calls a reference to a schedule
        rate = largest(given, steps)
        found.append(Bound(name, rate))
        gin.bind_parameter(name, functools.partial(rising, rate=rate, steps=min(STEPS, steps)))
    if not found:
        raise ConfigurationError(
            "`--mode=find_rate` changes the `learning_rate` that gin binds, but this configuration binds none: add a "
            "line, such as `adamw.learning_rate = 1e-3`."
        )
    return found


def largest(rate: float | Schedule, steps: int) -> float:
    """Returns the largest value of a learning rate in a run of `steps` steps."""
    if not callable(rate):
        return float(rate)
    places = tf.range(0, steps, max(1, steps // MOST_PLACES), dtype=tf.int64)
    rates = tf.function(lambda: tf.map_fn(rate, places, fn_output_signature=tf.float32), autograph=False)()
    return float(tf.reduce_max(rates))


def rising(step: tf.Tensor, *, rate: float, steps: int) -> tf.Tensor:
    """Returns the rate of a step: from LOW · rate to HIGH · rate, by equal factors."""
    share = tf.cast(step, tf.float32) / max(steps - 1, 1)
    return tf.cast(rate * LOW, tf.float32) * tf.exp(share * math.log(HIGH / LOW))


def _check(trainer: Trainer) -> None:
    backend, updates = trainer.train_step.backend, trainer.train_step.updates
    if not backend.steps_together:
        raise ConfigurationError(
            f"`--mode=find_rate` changes the rate of each step, which all replicas take together, but {backend.how} "
            "they take separate steps: leave out the lines for that."
        )
    if len(updates) > 1:
        raise ConfigurationError(
            f"`--mode=find_rate` compares the losses of one update, but this task has {', '.join(updates)}, whose "
            "rates depend on each other: compare their metrics in a `trainers.sweep`."
        )


def _tested(trainer: Trainer) -> list[Point]:
    """Takes the steps of the test, until the loss diverges."""
    chunks = trainer.input.chunks_from(0)
    stacked = next(chunks)
    program = trainer.programs.make(stacked)
    trainer.programs.begin(program, stacked)
    steps, points, total = min(STEPS, trainer.steps), list[Point](), 0.0
    for i in range(steps):
        if i and i % trainer.input.chunk_steps == 0:
            stacked = next(chunks)
        trainer.take_steps(stacked, 1, run=program)
        loss = trainer.figures()["loss"]
        trainer.progress.take_sums()
        total = DECAY * total + (1.0 - DECAY) * loss
        average = total / (1.0 - DECAY ** (i + 1))
        if int(trainer.progress.bad_step) != ALL_WELL or not math.isfinite(loss):
            break
        multiple = LOW * (HIGH / LOW) ** (i / max(steps - 1, 1))
        points.append(Point(multiple, loss, average))
        if average > DIVERGED * max(min(p.average for p in points), 0.0) > 0.0 and average > points[0].loss:
            break
    return points


def suggestion(points: Sequence[Point]) -> float | None:
    """Returns a multiple of the configured rates: a tenth of the one with the lowest average loss.

    If no rate lowers the loss, it returns `None`.
    """
    if not points:
        return None
    best = min(points, key=lambda point: point.average)
    return best.multiple / SAFE if best.average < points[0].average else None


def _table(bound: Sequence[Bound], points: Sequence[Point]) -> Table:
    table = Table(*(name for name, _ in bound), "loss", "average", title="losses as the rate rises")
    for column in table.columns:
        column.justify = "right"
    for point in points[:: max(1, math.ceil(len(points) / ROWS))]:
        rates = (f"{rate * point.multiple:.2e}" for _, rate in bound)
        table.add_row(*rates, f"{point.loss:.4g}", f"{point.average:.4g}")
    return table


def _said(bound: Sequence[Bound], points: Sequence[Point], found: float | None) -> str:
    if found is None:
        return "no rate lowers the loss: look at the loss and the labels, or configure another rate to begin with"
    lines = "\n".join(f"{name}: {rate * found:.2g} (configured: {rate:.2g})" for name, rate in bound)
    open_ended = found * SAFE >= points[-1].multiple and len(points) > 1
    more = "\nthe loss fell up to the largest rate: configure a larger one and run this again" if open_ended else ""
    return f"suggested, a tenth of the rate with the lowest average loss, as the largest rate of a run:\n{lines}{more}"
