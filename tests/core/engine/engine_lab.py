"""Trains a task on any number of replicas, to compare the results."""

from typing import ClassVar

import numpy as np
import tensorflow as tf

from core.module import named_variables
from core.optimizers import adam, sgd
from core.random import Rng
from core.task import EVERY_REPLICA, Compute, Loss, Task, Update
from core.testing import Run, assemble, on_virtual_cpus
from core.testing.plain import optimizers_of, plain_step
from models.classifiers.mlp import Mlp

STEPS = 8


ROWS = 16
RANDOM = np.random.RandomState(0)
REAL = {"real": np.random.RandomState(3).randn(ROWS, 8).astype("float32")}  # for `Gan`
DATA = {"x": RANDOM.randn(ROWS, 3).astype("float32"), "y": RANDOM.randn(ROWS).astype("float32")}


def update(name, loss, trains, **settings):
    return Update(name, loss=loss, trains=trains, optimizer=sgd(0.1, momentum=0.5), **settings)


class Several(Task):
    """Freezes the networks that a case has but doesn't train."""

    @property
    def frozen(self):
        trained = {id(v) for p in self.phases() if isinstance(p, Update) for v in p.variables().values()}
        parts = {name: part for name, part in vars(self).items() if isinstance(part, tf.Module)}
        return [name for name, part in parts.items() if trained.isdisjoint(map(id, part.trainable_variables))]


class Gan(Task):
    """A sample that both phases read; the generator learns through it."""

    places = (EVERY_REPLICA, EVERY_REPLICA, EVERY_REPLICA)
    g_optimizer = adam(0.01)
    passes: ClassVar[list[str]] = []  # traces of `sample`

    def __init__(self, *, rng):
        super().__init__()
        self.g, self.d = Mlp([4, 12, 8], rng=rng.fold("g")), Mlp([8, 12, 1], rng=rng.fold("d"))

    def phases(self):
        sample, d, g = self.places
        return [
            Compute("sample", self.sample, placement=sample),
            Update("d", loss=self.d_loss, trains=self.d, optimizer=sgd(0.1), placement=d),
            Update("g", loss=self.g_loss, trains=self.g, optimizer=self.g_optimizer, placement=g, through="sample"),
        ]

    def sample(self, batch, rng):
        self.passes.append("traced")
        return {"fake": self.g(rng.rows.normal(batch["real"].shape[0], 4))}

    def d_loss(self, batch, rng):
        real, fake = self.d(batch["real"])[:, 0], self.d(batch["fake"])[:, 0]
        return Loss(tf.nn.softplus(-real) + tf.nn.softplus(fake), metrics={"won": tf.cast(real > fake, tf.float32)})

    def g_loss(self, batch, rng):
        weight = tf.cast(batch["real"][:, 0] > -0.5, tf.float32)
        return Loss(tf.nn.softplus(-self.d(batch["fake"])[:, 0]), weight=weight)


def train(task_class, data, replicas, microbatches, *, steps=STEPS, placements=None, one_device=(), **settings):
    """Returns the results of some steps, and the step itself."""
    strategy = on_virtual_cpus(replicas)
    assembly = assemble(task_class, strategy, placements=placements or {}, one_device=one_device, seed=1)
    run = Run(assembly, data, microbatches=microbatches, seed=7, **settings)
    return run.train(steps), run.step


def assert_same(found, expected, *, norms=2e-6):
    """Asserts variables within 1e-5, metrics within 2e-6, norms within `norms`, relative to values larger than one."""
    (mine, _), (its, _) = found, expected
    for path, value in its.variables.items():
        np.testing.assert_allclose(mine.variables[path], value, rtol=1e-5, atol=1e-5, err_msg=path)
    for allowed, ours, theirs in ((2e-6, mine.figures, its.figures), (norms, mine.norms, its.norms)):
        for name, value in theirs.items():
            np.testing.assert_allclose(ours[name], value, rtol=allowed, atol=allowed, err_msg=name)


def assert_as_plain(task_class, data, replicas, microbatches, *, steps=2, seed=0, what=""):
    """Asserts that the engine matches `plain_step`'s variables and losses within 1e-5; returns its variables."""
    assembly = assemble(task_class, on_virtual_cpus(replicas))
    outcome = Run(assembly, data, microbatches=microbatches, seed=seed, steps=steps).train(steps)
    expected, optimizers, losses = plainly(task_class, data, microbatches, steps=steps, seed=seed)
    assert expected.keys() == outcome.variables.keys()
    for path, value in expected.items():
        np.testing.assert_allclose(outcome.variables[path], value, rtol=1e-5, atol=1e-5, err_msg=f"`{path}` of {what}")
    for phase in optimizers:
        mine = [float(loss.get(phase, np.nan)) for loss in losses]
        mine = np.where(outcome.figures[f"{phase}/weight"] == 0.0, np.nan, mine)  # the mean of no values
        np.testing.assert_allclose(
            outcome.figures[f"{phase}/loss"], mine, rtol=1e-5, atol=1e-6, err_msg=f"the loss of `{phase}` of {what}"
        )
    return expected


def plainly(task_class, data, microbatches=1, *, steps=2, seed=0, init=0):
    """Returns the variables after some `plain_step`s, by path, the optimizers, and the losses of each step."""
    task = task_class(rng=Rng.from_seed(init).fold("init"))
    optimizers, losses = optimizers_of(task), []
    batch = {key: tf.constant(x) for key, x in data.items()}
    for i in range(steps):
        rng = Rng.from_seed(seed, step=i, progress=i / steps).fold("train").fold(tf.constant(i, tf.int64))
        losses.append(plain_step(task, optimizers, batch, rng, index=i, microbatches=microbatches))
    variables = dict(named_variables(task))
    for phase, optimizer in optimizers.items():
        variables |= {f"optimizer/{phase}/{path}": v for path, v in optimizer.variables.items()}
    return {path: variable.numpy() for path, variable in variables.items()}, optimizers, losses
