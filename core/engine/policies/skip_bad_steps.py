"""Skips bad steps: steps that aren't finite, and steps whose gradient norm is far above recent norms."""

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

import tensorflow as tf

from core.choice import one_of
from core.engine.assembly import Assembly
from core.engine.chunk import Taken, batch_at
from core.engine.policies.recent_norms import Late
from core.engine.policies.undo_step import Undo
from core.engine.progress import ALL_WELL
from core.engine.step import StepResult, TrainStep
from core.task import Batch
from core.task.loss import GRADIENT_NORM, Sums

NOT_FINITE = "not finite"
SPIKE = "a spike"
KINDS = (NOT_FINITE, SPIKE)


class BadStep(NamedTuple):
    """The last bad step of a run: its number, its phase, and its kind."""

    step: int
    phase: str
    kind: str  # of `KINDS`


class Skipping:
    """Runs the steps of a chunk and skips bad steps. Pass it to `make_chunk` as `take`.

    A skipped step uses up its number, its examples and its random numbers, and changes nothing else. A bad step is
    skipped if its kind is in `skips`, at most `max_skips` times in a row. Otherwise it ends the chunk. With a
    `spike_factor`, a step is also bad if its gradient norm reaches `spike_factor` times the recent norm.
    """

    def __init__(
        self,
        train_step: TrainStep,
        assembly: Assembly,
        *,
        skips: Collection[str],
        max_skips: int,
        spike_factor: float | None = None,
    ):
        self.train_step, self.exchange = train_step, train_step.exchange
        self.skips, self.max_skips, self.spike_factor = skips, max_skips, spike_factor
        self.updates = list(train_step.specs)
        self.undo = Undo(assembly, self.exchange)
        with assembly.backend.kept_once():
            # The number skipped in a row, and in all; the last bad step, its phase and its kind.
            self._tally = tf.Variable([0, 0, ALL_WELL, 0, 0], dtype=tf.int64, trainable=False)
            self._late = tf.Variable(tf.zeros([2, len(self.updates)]), trainable=False)

    def __call__(self, stacked: Batch, first: tf.Tensor, begin: tf.Tensor, end: tf.Tensor, before: Taken) -> Taken:
        """Runs the steps from `begin` up to `end`. A bad step that may not be skipped is the last one."""

        def body(i: tf.Tensor, _: tf.Tensor, sums: Any, tally: tf.Tensor, late: tf.Tensor) -> Any:
            step, known = first + i, Late(*tf.unstack(late))
            result, bad = self._take(batch_at(self.exchange, stacked, i), step, self._limits(known))
            well, (in_a_row, in_all, *last) = result.healthy, tf.unstack(tally)
            may_be = tf.where(bad[-1] == KINDS.index(SPIKE), SPIKE in self.skips, NOT_FINITE in self.skips)
            left_out = ~well & may_be & (in_a_row < self.max_skips)
            one = tf.cast(left_out, tf.int64)
            last = [tf.where(well, x, y) for x, y in zip(last, bad, strict=True)]
            tally = tf.stack([tf.where(well, tf.zeros_like(one), in_a_row + one), in_all + one, *last])
            sums = tf.nest.map_structure(lambda x, y: one_of(well, x + y, x), sums, dict(result.sums))
            if self.spike_factor:
                late = tf.stack(known.after(self._norms(result.sums), applied=well))
            return i + 1, tf.where(well | left_out, tf.constant(ALL_WELL, tf.int64), step), sums, tally, late

        def unfinished(i: tf.Tensor, bad_step: tf.Tensor, *_: Any) -> tf.Tensor:
            return (bad_step == ALL_WELL) & (i < end - first)

        begun = (begin - first, *before, self._tally.read_value(), self._late.read_value())
        with self.train_step.backend.around_loop():
            _, bad_step, sums, tally, late = tf.while_loop(unfinished, body, begun)
        self._tally.assign(tally)
        self._late.assign(late)
        return bad_step, sums

    @property
    def variables(self) -> list[tf.Variable]:
        """Returns the variables that store the skip counters and the recent norms."""
        return [self._tally, self._late]

    def _take(self, values: Batch, step: tf.Tensor, limits: tf.Tensor) -> tuple[StepResult, list[tf.Tensor]]:
        """Runs one step, and undoes it if it is bad. Returns its result and `[step, phase, kind]`.

        `phase` is the index of the first bad update. `kind` is an index in `KINDS`. If all metrics are finite, the step
        is a spike.
        """
        kept = self.undo.read()
        result = self.train_step(values, step, limits=dict(zip(self.updates, tf.unstack(limits), strict=True)))
        self.undo.put_back(kept, unless=result.healthy)
        phase, sound, spike = tf.constant(0, tf.int64), tf.constant(True), tf.constant(True)
        norms = tf.unstack(self._norms(result.sums))
        for sums, norm, limit in zip(result.sums.values(), norms, tf.unstack(limits), strict=True):
            finite = tf.math.is_finite(sums["loss"]) & tf.math.is_finite(norm) & (sums["weight"] >= 0.0)
            sound, spike = sound & finite & (norm < limit), spike & finite
            phase += tf.cast(sound, tf.int64)
        phase = tf.minimum(phase, len(self.updates) - 1)
        return result, [step, phase, tf.cast(spike, tf.int64)]

    def _limits(self, late: Late) -> tf.Tensor:
        """Returns each update's limit of the gradient norm. Without a `spike_factor`, it is the largest float32."""
        if self.spike_factor:
            return late.limits(self.spike_factor)
        return tf.fill([len(self.updates)], tf.float32.max)

    def _norms(self, sums: Mapping[str, Sums]) -> tf.Tensor:
        return tf.stack([tf.math.divide_no_nan(x[GRADIENT_NORM], x["weight"]) for x in sums.values()])

    # --- for the host ------------------------------------------------------------------------------------------------

    @property
    def skipped(self) -> int:
        """Returns the number of skipped steps."""
        return int(self._tally[1])

    @property
    def last(self) -> BadStep:
        """Returns the last bad step. Call it only if `skipped` isn't 0, or if a bad step ended the chunk."""
        step, phase, kind = self._tally.numpy().tolist()[2:]
        return BadStep(step, self.updates[phase], KINDS[kind])

    def state(self) -> dict[str, Any]:
        """Returns the counters and recent norms as Python numbers, for a checkpoint."""
        in_a_row, skipped = self._tally.numpy().tolist()[:2]
        norm, count = self._late.numpy().tolist()
        late = dict(zip(self.updates, zip(norm, count, strict=True), strict=True)) if self.spike_factor else {}
        return {"in_a_row": in_a_row, "skipped": skipped, "late": late}

    def load(self, state: Mapping[str, Any]) -> None:
        """Restores what `state` returned. An empty `state` resets counters and norms."""
        late = state.get("late", {})
        self._tally.assign([state.get("in_a_row", 0), state.get("skipped", 0), ALL_WELL, 0, 0])
        self._late.assign(tf.transpose([late.get(name, [0.0, 0.0]) for name in self.updates]))
