"""A trial: a trainer with other settings from the first step on, its first metrics, and the time of its steps."""

import gc
import math
from collections.abc import Mapping

from core.task import Compute, Update
from trainers.performance.rehearsal import Rehearsal, agreed, divisor
from trainers.performance.tune.proposals import Case

TURN_SECONDS, PATIENCE_SECONDS = 0.25, 2.0  # of a section of training with real input, and its limit
MOST_STEPS, COMPARED_SECONDS = 10, 2.0  # whose metrics are compared: rounding grows with more steps
SAME, NOTHING = 1e-4, 1e-6  # relative and absolute tolerance for equal metrics
ROUNDED = 2.0**-7  # both, if a phase computes in bfloat16 or float16: its rounding changes a few predictions too


class Trial(Rehearsal):
    """A rehearsal of training with some settings, to be compared with another trial."""

    waits = 0.0  # share of its last section spent waiting for data

    def compared_steps(self) -> int:
        """Returns the number of steps whose metrics are compared, in whole rounds of local steps."""
        unit = self.trainer.settings.round_steps
        count = min(MOST_STEPS, self.trainer.steps, max(2, int(COMPARED_SECONDS / self.seconds_a_step)))
        return max(1, count // unit) * unit

    def figures(self, steps: int) -> dict[str, float]:
        """Takes the first steps of a run. Returns their metrics, which a trial of other settings should equal."""
        batches = self.trainer.input.chunks_from(0)
        for first in range(0, steps, self.chunk_steps):
            count = min(self.chunk_steps, steps - first)
            self._seconds(self._whole, count, next(batches), first=first)
        self.refuse_bad_step()
        return self.trainer.figures()

    def step(self) -> float:
        """Trains with real input for a turn. Returns the seconds of a step."""
        seconds, waited = self.real(TURN_SECONDS, chunks=1, patience=PATIENCE_SECONDS)
        self.waits = waited / seconds
        return seconds

    def cut_to(self, seconds: float) -> int:
        """Returns the largest chunk length that takes at most `seconds` and divides the present length, in steps."""
        unit = self.trainer.settings.round_steps
        (step,) = agreed([self.step()], self.trainer.agreement)
        return unit * divisor(self.chunk_steps // unit, most=int(seconds / (unit * step)))

    def case(self, *, seconds: float, waits: float, cut: bool) -> Case:
        """Returns the `Case` for proposals: a step takes `seconds`, a share `waits` of them waiting for data."""
        trainer, spec = self.trainer, self.trainer.input.source.spec
        phases = trainer.experiment.assembly.phases
        return Case(
            settings=trainer.settings,
            chunk_steps=self.chunk_steps,
            step_bytes=trainer.settings.global_batch_size
            * sum(x.dtype.size * (x.shape.num_elements() or 0) for x in spec.values()),
            replicas=trainer.train_step.exchange.replicas,
            how=trainer.train_step.backend.how,
            compiled=not trainer.train_step.backend.not_compiled,
            updates=[phase.name for phase in phases if isinstance(phase, Update)],
            # A phase's own number of microbatches overrides the trainer's.
            mixing=[phase.name for phase in phases if phase.mixes_rows and phase.microbatches is None],
            placements={
                phase.name: phase.placement
                for phase in phases
                if not (isinstance(phase, Compute) and phase.state is not None)
            },
            placed=trainer.experiment.placements,
            cut=cut,
            seconds=seconds,
            waits=waits,
        )


def unlike(before: Mapping[str, float], after: Mapping[str, float], steps: int, *, narrow: bool = False) -> str | None:
    """Returns text on the first metric that differs between two runs of `steps` steps, or None.

    With `narrow`, a phase computes in bfloat16 or float16, and metrics may differ by the rounding.

    >>> unlike({"loss": 2.0}, {"loss": 2.1}, 20)
    '`loss` is 2.1 after 20 steps, and was 2'
    """
    relative, absolute = (ROUNDED, ROUNDED) if narrow else (SAME, NOTHING)
    for name in sorted({*before, *after}):
        one, other = before.get(name, math.nan), after.get(name, math.nan)
        both = math.isnan(one) and math.isnan(other) and name in before and name in after
        if not both and not math.isclose(one, other, rel_tol=relative, abs_tol=absolute):
            return f"`{name}` is {other:.7g} after {steps} steps, and was {one:.7g}"
    return None


def forget() -> None:
    """Frees the memory of a finished trial: traced functions contain reference cycles."""
    gc.collect()
