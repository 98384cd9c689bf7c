"""The plan of one phase: its devices, microbatches, inputs and outputs, and whether it can be computed so."""

import dataclasses
from collections.abc import Callable, Iterator

import tensorflow as tf

from core.engine.inspect_phase import Access, LossSpec, Specs
from core.errors import ConfigurationError
from core.module import named_modules
from core.precision import AS_GIVEN, Narrowing
from core.random import Rng
from core.task import Batch, Loss, Phase, Update


@dataclasses.dataclass(frozen=True)
class Plan:
    """One phase with its devices, microbatches, inputs and outputs."""

    phase: Phase
    replicated: bool  # on every replica, or once on one device
    replicas: int  # that split its rows; 1 on one device
    microbatches: int
    rows: int  # of one microbatch, where the phase runs
    reads: tuple[str, ...]
    outputs: Specs  # of one microbatch: [rows, ...]
    access: Access
    loss: LossSpec | None = None  # of an `Update`
    through: "Plan | None" = None  # the `Compute` that its gradients continue through
    narrowing: Narrowing = AS_GIVEN  # what it computes in, and the casts of its inputs

    @property
    def name(self) -> str:
        return self.phase.name

    @property
    def weighted(self) -> bool:
        return self.loss is not None and self.loss.weighted

    @property
    def sampled_loss(self) -> Callable[[Batch, Rng], Loss] | None:
        """Returns the phase's `sampled_loss`, if its optimizer estimates the curvature by that."""
        if not isinstance(self.phase, Update) or self.phase.optimizer.curvature is None:
            return None
        return self.phase.sampled_loss if self.phase.optimizer.curvature.sampled else None

    @property
    def together(self) -> bool:
        """Says whether all replicas run each microbatch at once. This is needed for collectives in the loop."""
        return self.phase.mixes_rows and self.replicas > 1 and self.microbatches > 1

    def check(self) -> None:
        """Raises a `ConfigurationError` if what the phase returns doesn't fit what it was declared with."""
        _check_mixing(self)
        _check_clipping(self)
        _check_parts(self)


def clips(phase: Phase) -> bool:
    """Says whether the phase clips the gradient of each example, and so takes each in its own microbatch."""
    return isinstance(phase, Update) and phase.clip_examples is not None


def _check_mixing(plan: Plan) -> None:
    """Raises a `ConfigurationError` if a phase with `mixes_rows` would mix each replica's rows separately."""
    if plan.phase.mixes_rows and plan.replicas > 1 and not plan.access.mixes:
        raise ConfigurationError(
            f"phase `{plan.name}` says `mixes_rows=True`, but on {plan.replicas} replicas it neither gathers rows nor "
            f"synchronises: each would mix its own {plan.rows} of {plan.rows * plan.replicas} alone. Compare with the "
            "rows of all, `all_rows(x)` from `core.task`; give normalisations over the batch `sync=True`; let the "
            "phase run on one device (`placement=ONE_DEVICE`); or leave `mixes_rows` out if rows are independent."
        )


def _check_clipping(plan: Plan) -> None:
    """Raises a `ConfigurationError` if a phase with `clip_examples` weighs its examples, or keeps their statistics."""
    if not clips(plan.phase):
        return
    assert plan.loss
    if plan.weighted or plan.loss.statistics:
        what = "a `weight`" if plan.weighted else "`statistics` of the batch"
        raise ConfigurationError(
            f"phase `{plan.name}` has `clip_examples`, but its loss returns {what}; each example counts alike and is "
            f"computed by itself: leave out {'the weight' if plan.weighted else 'layers such as `BatchNorm`'}, or "
            "`clip_examples`."
        )


def _check_parts(plan: Plan) -> None:
    """Raises a `ConfigurationError` if the noise scale needs gradients of parts of a batch, and there are none."""
    if plan.loss is None or not plan.loss.noise_scale:
        return
    if plan.through is not None:
        raise ConfigurationError(
            f"`NoiseScale` compares gradients of microbatches, but phase `{plan.name}` trains through "
            f"`{plan.through.name}`, which has only their sum: remove the hook."
        )
    if plan.microbatches * plan.replicas == 1:
        raise ConfigurationError(
            f"`NoiseScale` compares gradients of parts of a batch, but phase `{plan.name}` has one microbatch on "
            "one device: set `Trainer.microbatches` to 2 or more, or remove the hook."
        )


def silent_layers(plan: Plan) -> Iterator[str]:
    """Yields a warning for each dropout layer that the phase trains and calls without an `rng`."""
    trains = plan.phase.trains if isinstance(plan.phase, Update) else []
    modules = [trains] if isinstance(trains, tf.Module) else trains
    paths = {id(part): path or "itself" for module in modules for path, part in named_modules(module).items()}
    for layer in plan.access.without_rng:
        if id(layer) in paths:
            yield (
                f"phase `{plan.name}` trains a module whose `{type(layer).__name__}` `{paths[id(layer)]}` gets no "
                'rng, so nothing is dropped: pass one, as in `self.dropout(x, rng.fold("dropout"))`. If that is '
                "intended, give it a rate of 0"
            )


def is_shape_only(plan: Plan, key: str) -> bool:
    """Says whether the phase uses the value `key` only for its shape."""
    return key in plan.access.shapes_only or key not in plan.access.reads
