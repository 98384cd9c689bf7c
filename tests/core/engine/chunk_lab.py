"""Trains a task by chunks of steps: synchronous, local or with skipped steps; other rows in each step."""

import functools

import numpy as np
import tensorflow as tf

from core.distribution import make_drift_check
from core.engine import ALL_WELL, Progress, Skipping, TrainStep, make_chunk
from core.parallel.local_steps import LocalSteps
from core.testing import assemble, on_virtual_cpus

ROWS, STEPS = 16, 12
RANDOM = np.random.RandomState(0)
DATA = {
    "x": RANDOM.randn(STEPS, ROWS, 3).astype("float32"),
    "y": RANDOM.randn(STEPS, ROWS).astype("float32"),
    "word": RANDOM.randint(0, 2048, [STEPS, ROWS]),
    "weight": RANDOM.choice([0.5, 1.0, 3.0], [STEPS, ROWS]).astype("float32"),
}


class Training:
    """One traced chunk of `data`, [steps, rows, ...] each: synchronous unless `local_steps` is given.

    `skips` are settings of `Skipping`. `restart` begins a new run without a second trace.
    """

    def __init__(
        self,
        task,
        replicas,
        local_steps=None,
        *,
        outer=None,
        data=DATA,
        microbatches=1,
        compile=False,
        precision="float32",
        **skips,
    ):
        self.strategy, self.microbatches = on_virtual_cpus(replicas), microbatches
        self.assembly = assemble(task, self.strategy, seed=1)
        self.give(data)
        first = self.strategy.experimental_local_results(self.stacked)[0]
        spec = {key: tf.TensorSpec(x.shape[1:], x.dtype) for key, x in first.items()}
        backend = LocalSteps(self.strategy, local_steps, outer) if local_steps else self.assembly.backend
        how = {"compile": compile, "precision": precision, "backend": backend}
        self.step = TrainStep(self.assembly, spec, seed=7, steps=1000, **how)
        rounds = backend.rounds(self.step, self.assembly)
        self.skipping = Skipping(self.step, self.assembly, **skips) if skips else None
        self.variables = {**self.assembly.variables, **self.step.scale_variables}
        self.variables |= rounds.variables if rounds else {}
        self.initial = {path: v.numpy() for path, v in self.variables.items()}
        sums = {name: spec.sums_of_update for name, spec in self.step.specs.items()}
        self.progress = Progress(sums, strategy=self.strategy)
        stacked = tf.nest.map_structure(tf.type_spec_from_value, dict(self.stacked))
        self.chunk = make_chunk(self.step, stacked, self.progress, rounds or self.skipping)

    def give(self, data):
        """Sets other rows for the next steps."""
        replicas = self.strategy.num_replicas_in_sync
        cut = {key: x.reshape(len(x), self.microbatches, replicas, -1, *x.shape[2:]) for key, x in data.items()}
        self.stacked = self.strategy.experimental_distribute_values_from_function(
            lambda context: {key: tf.constant(x[:, :, context.replica_id_in_sync_group]) for key, x in cut.items()}
        )

    def restart(self, data=None, values=None):
        """Resets to the initial variables, or to other `values`; sets other rows if there are any."""
        for path, value in (values or self.initial).items():
            self.variables[path].assign(value)
        self.progress.bad_step.assign(ALL_WELL)
        self.progress.take_sums()
        if self.skipping:
            self.skipping.load({})
        if data is not None:
            self.give(data)
        return self

    def take(self, begin=0, end=STEPS):
        """Takes steps; returns which of them were bad."""
        self.chunk(self.stacked, tf.constant([0, begin, end], tf.int64))
        return int(self.progress.bad_step)

    def train(self, begin=0, end=STEPS):
        """Takes steps, asserts that replicas hold the same bits; returns the variables by path."""
        if self.take(begin, end) == ALL_WELL:
            self.check_replicas()
        return {path: v.numpy() for path, v in self.variables.items()}

    @functools.cached_property
    def check_replicas(self):
        return make_drift_check(self.strategy, self.variables)

    @property
    def collectives(self):
        return self.step.exchange.ledger.collectives

    @property
    def overflowed(self):
        """The number of steps whose gradients overflowed, in all phases."""
        return sum(int(sums["overflowed_steps"].steps) for sums in self.progress.read_sums().values())

    @property
    def sums(self):
        return {
            f"{phase}/{name}": float(x) for phase, sums in self.progress.read_sums().items() for name, x in sums.items()
        }
