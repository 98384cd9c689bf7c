"""The servers' state: which steps are done, the staleness of gradients, whether a write was interrupted.

All of it is stored on the first server, and is accessed under one lock.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

WINDOW = 1 << 12  # steps that may be under way at once
NOBODY = -1


class Book:
    """The servers' state of one run: done steps, update counts, staleness, and the step being written."""

    def __init__(
        self,
        updates: Sequence[str],
        bad_step: tf.Variable,
        sums: Mapping[str, Any],
        *,
        server: str,
        max_staleness: int | None,
    ):
        self.bad_step, self.sums, self.max_staleness = bad_step, sums, max_staleness
        with tf.device(server):
            # A push for a done step is rejected, so a step may be scheduled several times, and counts once.
            self.done = {name: _number([WINDOW], NOBODY) for name in updates}
            self.clocks = {name: _number([], 0) for name in updates}  # updates so far
            self.pushing = _number([], NOBODY)  # the step whose push is under way
            self.ages = {name: _number([], 0) for name in ("sum", "max", "pushes", "refused")}

    def enter(
        self,
        phase: str,
        step: tf.Tensor,
        seen: tf.Tensor,
        healthy: tf.Tensor,
        write: Callable[[tf.Tensor, tf.Tensor], Any],
    ) -> tf.Tensor:
        """Lets a worker write an update, whole or not at all. Returns whether the step may continue.

        `seen` is the number of updates in the worker's weights. The state decides whether to apply the update, and
        calls `write(apply, age)`. `write` returns whether all values are finite, and the metrics.
        """
        slot, age = step % WINDOW, self.clocks[phase].read_value() - seen
        new = self.done[phase].sparse_read(slot) < step
        well = healthy & (self.pushing.read_value() == NOBODY) & (self.bad_step.read_value() < 0)
        fresh = tf.constant(True) if self.max_staleness is None else age <= self.max_staleness
        take = well & new & fresh
        # If the worker dies in between, this records the half-written push.
        begun = self.pushing.assign(tf.where(take, step, self.pushing.read_value()))
        with tf.control_dependencies([begun]):
            finite, sums = tf.function(write, autograph=False)(take, age)
        with tf.control_dependencies([finite, *tf.nest.flatten(sums)]):
            applied = take & finite
            written = self._write_down(phase, step, age, applied, bad=take & ~finite)
            written.append(self.ages["refused"].assign_add(tf.cast(well & new & ~fresh, tf.int64)))
            for own, x in zip(tf.nest.flatten(self.sums[phase]), tf.nest.flatten(sums), strict=True):
                written.append(own.assign_add(tf.where(applied, x, tf.zeros_like(x))))
        with tf.control_dependencies(written):
            ended = self.pushing.assign(tf.where(take, tf.constant(NOBODY, tf.int64), self.pushing.read_value()))
        with tf.control_dependencies([ended]):
            return tf.where(new, applied, well)

    def over(self) -> tf.Tensor:
        """Says whether writing has ended: because a step wasn't finite, or because a write was interrupted."""
        return (self.bad_step.read_value() != NOBODY) | (self.pushing.read_value() != NOBODY)

    def figures(self) -> dict[str, float]:
        """Returns `{"staleness": mean, "staleness_max": largest}` since the last call, and resets both."""
        ages = {name: int(variable) for name, variable in self.ages.items()}
        for variable in self.ages.values():
            variable.assign(0)
        mean = ages["sum"] / max(1, ages["pushes"])
        refused = {} if self.max_staleness is None else {"refused": float(ages["refused"])}
        return {"staleness": mean, "staleness_max": float(ages["max"]), **refused}

    def _write_down(
        self, phase: str, step: tf.Tensor, age: tf.Tensor, applied: tf.Tensor, bad: tf.Tensor
    ) -> list[tf.Tensor]:
        slot, counted, done = step % WINDOW, tf.cast(applied, tf.int64), self.done[phase]
        mark = tf.where(applied, step, done.sparse_read(slot))
        return [
            done.scatter_nd_update([[slot]], [mark]),
            self.bad_step.assign(tf.where(bad, step, self.bad_step.read_value())),
            self.clocks[phase].assign_add(counted),
            self.ages["sum"].assign_add(age * counted),
            self.ages["max"].assign(tf.maximum(self.ages["max"].read_value(), age * counted)),
            self.ages["pushes"].assign_add(counted),
        ]


def _number(shape: list[int], value: int) -> tf.Variable:
    return tf.Variable(tf.fill(shape, tf.constant(value, tf.int64)), trainable=False)
