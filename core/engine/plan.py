"""What each phase of a step reads and makes: found out by tracing its function once, before the first step."""

import dataclasses
from collections.abc import Mapping, Sequence

import tensorflow as tf

from core.errors import ConfigurationError
from core.loss_spec import LossSpec, describe_loss, describe_outputs
from core.task import Batch, Compute, Phase, Update


@dataclasses.dataclass(frozen=True)
class Plan:
    """One phase and its place in the step."""

    phase: Phase
    reads: tuple[str, ...]  # what it may read of the values made so far
    outputs: Mapping[str, tf.TensorSpec]  # `[rows, ...]` of one replica
    loss: LossSpec | None  # of an `Update`

    def inputs(self, values: Batch) -> dict[str, tf.Tensor]:
        """What the phase may read of `values`."""
        return {key: values[key] for key in self.reads}


def make_plans(phases: Sequence[Phase], batch: Mapping[str, tf.TensorSpec]) -> list[Plan]:
    """The plan of each phase, given the specs of a microbatch as the source makes it."""
    known, makers = dict(batch), dict[str, Phase]()
    plans = []
    for phase in phases:
        # A phase may read what is there whenever it is due: what phases made whose `every` divides its own.
        elsewhere = {
            key: f"phase `{maker.name}` makes it only every {maker.every} steps (give both the same `every`)"
            for key, maker in makers.items()
            if phase.every % maker.every
        }
        spec = {key: known[key] for key in known if key not in elsewhere}
        plan = _plan(phase, spec, elsewhere)
        for key in plan.outputs:
            if key in known:
                origin = f"phase `{makers[key].name}`" if key in makers else "the source"
                raise ConfigurationError(
                    f"phase `{phase.name}` makes `{key}`, which comes from {origin} already: give it another name."
                )
            makers[key] = phase
        known |= plan.outputs
        plans.append(plan)
    return plans


def _plan(phase: Phase, spec: Mapping[str, tf.TensorSpec], elsewhere: Mapping[str, str]) -> Plan:
    if isinstance(phase, Compute):
        outputs = describe_outputs(phase.fn, spec, phase.name, elsewhere, mixes_rows=phase.mixes_rows)
        return Plan(phase, tuple(spec), outputs, None)
    assert isinstance(phase, Update)
    loss = describe_loss(phase.loss, spec, phase.name, elsewhere, mixes_rows=phase.mixes_rows)
    return Plan(phase, tuple(spec), loss.outputs, loss)
