"""Trains a task by local steps, and by synchronous ones, on the same rows: other rows in each step."""

import numpy as np
import tensorflow as tf

from core.distribution import LocalExchange, make_drift_check
from core.engine import ALL_WELL, Progress, Rounds, TrainStep, make_chunk
from core.testing import assemble, on_virtual_cpus

ROWS, STEPS = 16, 12
RANDOM = np.random.RandomState(0)
DATA = {
    "x": RANDOM.randn(STEPS, ROWS, 3).astype("float32"),
    "y": RANDOM.randn(STEPS, ROWS).astype("float32"),
    "word": RANDOM.randint(0, 2048, [STEPS, ROWS]),
    "weight": RANDOM.choice([0.5, 1.0, 3.0], [STEPS, ROWS]).astype("float32"),
}


class Local:
    """A training, synchronous where `local_steps` is None."""

    def __init__(self, task, replicas, local_steps, *, outer=None, data=DATA, microbatches=1, compile=False):
        self.strategy = on_virtual_cpus(replicas)
        self.assembly = assemble(task, self.strategy, seed=1)
        cut = {key: x.reshape(len(x), microbatches, replicas, -1, *x.shape[2:]) for key, x in data.items()}
        self.stacked = self.strategy.experimental_distribute_values_from_function(
            lambda context: {key: tf.constant(x[:, :, context.replica_id_in_sync_group]) for key, x in cut.items()}
        )
        spec = {key: tf.TensorSpec([microbatches, *x.shape[3:]], x.dtype) for key, x in cut.items()}
        settings = {"seed": 7, "steps": 1000, "compile": compile}
        if local_steps is None:
            self.step, rounds = TrainStep(self.assembly, spec, **settings), None
        else:
            self.step = TrainStep(self.assembly, spec, exchange=LocalExchange(self.strategy), **settings)
            rounds = Rounds(self.step, self.assembly, local_steps=local_steps, outer=outer)
        self.variables = {**self.assembly.variables, **(rounds.variables if rounds else {})}
        self.progress = Progress(
            {name: spec.sums_of_update for name, spec in self.step.specs.items()}, strategy=self.strategy
        )
        self.chunk = make_chunk(
            self.step, tf.nest.map_structure(tf.type_spec_from_value, dict(self.stacked)), self.progress, rounds
        )

    def train(self, begin=0, end=STEPS):
        """Takes steps; replicas hold the same bits then, or there is an error. Returns the variables by path."""
        self.chunk(self.stacked, tf.constant([0, begin, end], tf.int64))
        if int(self.progress.bad_step) == ALL_WELL:
            make_drift_check(self.strategy, self.variables)()
        return {path: v.numpy() for path, v in self.variables.items()}

    @property
    def collectives(self):
        return self.step.exchange.ledger.collectives

    @property
    def sums(self):
        return {
            f"{phase}/{name}": float(x) for phase, sums in self.progress.read_sums().items() for name, x in sums.items()
        }
