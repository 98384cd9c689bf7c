"""Trains a task on any number of replicas, to compare the outcomes."""

import numpy as np
import pytest
import tensorflow as tf

from core.module import named_variables
from core.optimizers import sgd
from core.random import Rng
from core.task import Task, Update
from core.testing import Run, assemble, on_virtual_cpus
from core.testing.plain import optimizers_of, plain_step

STEPS = 20
LONG = [(1, 1), (1, 2), (4, 2), (2, 1)]
GRID = [(2, 2), *(pytest.param(*numbers, marks=pytest.mark.long) for numbers in LONG)]  # replicas, microbatches

ROWS = 16
RANDOM = np.random.RandomState(0)
DATA = {"x": RANDOM.randn(ROWS, 3).astype("float32"), "y": RANDOM.randn(ROWS).astype("float32")}


def update(name, loss, trains, **settings):
    return Update(name, loss=loss, trains=trains, optimizer=sgd(0.1, momentum=0.5), **settings)


def on_grid(tasks):
    """Returns each task with the first numbers of the grid and, as `long` ones, with half of the others in turn."""
    others = [(task, *numbers) for i, task in enumerate(tasks) for numbers in LONG[i % 2 :: 2]]
    return [*((task, *GRID[0]) for task in tasks), *(pytest.param(*x, marks=pytest.mark.long) for x in others)]


class Several(Task):
    """Freezes the networks that a case has but doesn't train."""

    @property
    def frozen(self):
        trained = {id(v) for p in self.phases() if isinstance(p, Update) for v in p.variables().values()}
        parts = {name: part for name, part in vars(self).items() if isinstance(part, tf.Module)}
        return [name for name, part in parts.items() if trained.isdisjoint(map(id, part.trainable_variables))]


def train(task_class, data, replicas, microbatches, *, steps=STEPS, placements=None, one_device=(), **settings):
    """What some steps led to, and the step itself."""
    strategy = on_virtual_cpus(replicas)
    assembly = assemble(task_class, strategy, placements=placements or {}, one_device=one_device, seed=1)
    run = Run(assembly, data, microbatches=microbatches, seed=7, **settings)
    return run.train(steps), run.step


def assert_same(found, expected, *, norms=2e-6):
    """Variables within 1e-5, figures within 2e-6, norms within `norms`, relative to what is larger than one."""
    (mine, _), (its, _) = found, expected
    for path, value in its.variables.items():
        np.testing.assert_allclose(mine.variables[path], value, rtol=1e-5, atol=1e-5, err_msg=path)
    for allowed, ours, theirs in ((2e-6, mine.figures, its.figures), (norms, mine.norms, its.norms)):
        for name, value in theirs.items():
            np.testing.assert_allclose(ours[name], value, rtol=allowed, atol=allowed, err_msg=name)


def assert_as_plain(task_class, data, replicas, microbatches, *, steps=3, seed=0, what=""):
    """The engine leads to the variables and losses of `plain_step`, within 1e-5; returns those variables."""
    assembly = assemble(task_class, on_virtual_cpus(replicas))
    outcome = Run(assembly, data, microbatches=microbatches, seed=seed, steps=steps).train(steps)
    task = task_class(rng=Rng.from_seed(0).fold("init"))
    optimizers, losses = optimizers_of(task), []
    batch = {key: tf.constant(x) for key, x in data.items()}
    for i in range(steps):
        rng = Rng.from_seed(seed, step=i, progress=i / steps).fold("train").fold(tf.constant(i, tf.int64))
        losses.append(plain_step(task, optimizers, batch, rng, index=i, microbatches=microbatches))
    expected = dict(named_variables(task))
    for phase, optimizer in optimizers.items():
        expected |= {f"optimizer/{phase}/{path}": v for path, v in optimizer.variables.items()}
    assert expected.keys() == outcome.variables.keys()
    for path, variable in expected.items():
        np.testing.assert_allclose(
            outcome.variables[path], variable.numpy(), rtol=1e-5, atol=1e-5, err_msg=f"`{path}` of {what}"
        )
    for phase in optimizers:
        mine = [float(loss.get(phase, np.nan)) for loss in losses]
        mine = np.where(outcome.figures[f"{phase}/weight"] == 0.0, np.nan, mine)  # the mean of nothing
        np.testing.assert_allclose(
            outcome.figures[f"{phase}/loss"], mine, rtol=1e-5, atol=1e-6, err_msg=f"the loss of `{phase}` of {what}"
        )
    return {path: variable.numpy() for path, variable in expected.items()}
