"""Rounds of local steps. Between synchronizations, each replica trains alone on its rows of the global batches.

Each step runs unchanged in replica context, and writes the replica's own copies of variables. At the end of a round,
all replicas become equal again, bit for bit. So code that runs between rounds (metrics, checkpoints, evaluation) is the
same as without local steps.
"""

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from core.engine.assembly import Assembly
from core.engine.chunk import Taken, take_steps
from core.engine.inspect_phase import zeros
from core.engine.progress import ALL_WELL
from core.engine.step import TrainStep
from core.optimizers import Transform
from core.parallel.local_steps.exchange import LocalExchange
from core.parallel.local_steps.synchronize import Meeting
from core.task import Batch


class Rounds:
    """Runs a chunk's steps in rounds of `local_steps` steps. Pass it to `make_chunk` as `take`."""

    def __init__(self, train_step: TrainStep, assembly: Assembly, *, local_steps: int, outer: Transform | None = None):
        assert isinstance(train_step.exchange, LocalExchange)
        self.train_step, self.exchange, self.local_steps = train_step, train_step.exchange, local_steps
        self.meeting = Meeting(assembly, self.exchange, outer)

    @property
    def variables(self) -> Mapping[str, tf.Variable]:
        """Returns variables for a checkpoint, in addition to those of the assembly."""
        return self.meeting.variables

    def __call__(self, stacked: Batch, first: tf.Tensor, begin: tf.Tensor, end: tf.Tensor, before: Taken) -> Taken:
        """Runs whole rounds from step `begin` up to `end`. A round with a step that isn't finite is the last one."""

        def body(step: tf.Tensor, _: tf.Tensor, sums: Any) -> Any:
            bad_step, added = self.exchange.round(self._one, stacked, first, step)
            return step + self.local_steps, bad_step, tf.nest.map_structure(tf.add, sums, added)

        def unfinished(step: tf.Tensor, bad_step: tf.Tensor, _: Any) -> tf.Tensor:
            return (bad_step == ALL_WELL) & (step < end)

        _, bad_step, sums = tf.while_loop(unfinished, body, (begin, *before))
        return bad_step, sums

    def _one(self, stacked: Batch, first: tf.Tensor, begin: tf.Tensor) -> Taken:
        """Runs the round that begins at step `begin`, in replica context. Returns the first bad step and the sums."""
        nothing = {name: zeros(spec.sums_of_update) for name, spec in self.train_step.specs.items()}
        start = (tf.constant(ALL_WELL, tf.int64), nothing)
        weights = self.meeting.begin()
        bad_step, sums = take_steps(self.train_step, stacked, first, begin, begin + self.local_steps, start)
        # A slot for each step of the round: in the sum over replicas, the first nonzero slot is the first bad step.
        struck = tf.one_hot(bad_step - begin, self.local_steps)
        struck, sums = self.meeting.end(weights, struck, sums)
        bad_step = begin + tf.argmax(struck > 0.0)
        return tf.where(tf.reduce_any(struck > 0.0), bad_step, tf.constant(ALL_WELL, tf.int64)), sums
