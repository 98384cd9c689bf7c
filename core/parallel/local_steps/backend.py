"""The backend of local steps, for any strategy whose replicas hold whole copies of the variables.

Checks raise errors for features that local steps don't support, since rounds have no communication.
"""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from core.arguments import listed
from core.distribution import Backend, Exchange
from core.engine import Assembly, TrainStep
from core.errors import ConfigurationError
from core.optimizers import Transform
from core.optimizers.narrow_slots import is_codes
from core.optimizers.soap import is_basis
from core.parallel.local_steps.exchange import LocalExchange
from core.parallel.local_steps.rounds import Rounds
from core.parallel.places import refuse_sharded
from core.task import Compute, Phase, Update

_OR = "or leave `Trainer.local_steps` out."


class LocalSteps(Backend):
    """The backend of replicas that synchronize once every `round_steps` steps."""

    how = "with `Trainer.local_steps`"
    in_rounds = True
    steps_together = False
    separable = False

    def __init__(self, strategy: tf.distribute.Strategy, round_steps: int, outer: Transform | None = None):
        super().__init__(strategy)
        self.round_steps, self.outer = round_steps, outer

    def check_policies(self, skipping: Sequence[str], rolling_back: Sequence[str]) -> None:
        """Raises an error for policies that skip steps: replicas learn of another's bad step only after the round."""
        for name in skipping:
            raise ConfigurationError(
                f"{name} is for steps that all replicas agree on, but with `Trainer.local_steps` a replica "
                "learns of the others' steps only at a round's end: use `Trainer.on_nonfinite = 'rollback'`, or leave "
                "it out."
            )

    def exchange(self, *, reduce_in: tf.DType | None = None) -> Exchange:
        """Makes the exchange, which sends nothing within a round."""
        return LocalExchange(self.strategy, reduce_in=reduce_in)

    def rounds(self, train_step: TrainStep, assembly: Assembly) -> Any:
        """Makes the object that runs a chunk's steps in whole rounds."""
        return Rounds(train_step, assembly, local_steps=self.round_steps, outer=self.outer)

    def check(self, assembly: Assembly, *, global_batch_size: int) -> None:
        """Raises a `ConfigurationError` for a task that can't be trained with local steps."""
        check_local_steps(assembly, global_batch_size=global_batch_size, outer=self.outer)


def check_local_steps(assembly: Assembly, *, global_batch_size: int, outer: Transform | None = None) -> None:
    """Raises an error for a mesh, parameter servers, and phases that a replica can't compute from its own rows.

    Also raises an error if `outer` can't be an outer optimizer, or a phase's optimizer doesn't work with one.
    """
    assembly.backend.check_local_steps()
    if outer:
        _check_looks_at_no_loss(outer)
        _check_copies(assembly, outer)
    _check_averages(assembly)
    refuse_sharded(assembly.optimizers.values(), instead=f"Leave it out, {_OR}")
    if assembly.strategy.num_replicas_in_sync == 1:
        return
    alone = [path for path, v in assembly.variables.items() if id(v) in assembly.one_device_ids]
    if alone:
        raise ConfigurationError(
            f"with `Trainer.local_steps` the replicas' weights differ within a round, but {listed(alone, most=3)} "
            f"live on one device (`one_device`): let that network be on every replica, {_OR}"
        )
    for phase in assembly.phases:
        _check_phase(phase, global_batch_size)


def _check_averages(assembly: Assembly) -> None:
    """Raises a `ConfigurationError` for slots that a synchronization can't average."""
    for phase, optimizer in assembly.optimizers.items():
        coded = [name for name, slot in optimizer.variables.items() if is_codes(slot)]
        if coded:
            raise ConfigurationError(
                f"the optimizer of phase `{phase}` stores `{coded[0]}` in 8-bit codes (`slots`), but "
                "`Trainer.local_steps` averages slots over replicas, and codes can't be averaged: give "
                f'`slots="bfloat16"`, {_OR}'
            )
        bases = [f"{slot}/{path}" for slot, own in optimizer.slots.items() if is_basis(slot) for path in own]
        if bases:
            raise ConfigurationError(
                f"the optimizer of phase `{phase}` (`soap`) stores a basis of eigenvectors `{bases[0]}`, but "
                "`Trainer.local_steps` averages slots over replicas, and a mean of bases is no basis: give another "
                f"optimizer, such as `shampoo`, {_OR}"
            )


def _check_phase(phase: Phase, global_batch_size: int) -> None:
    """Raises a `ConfigurationError` for a phase that a replica can't compute from its own rows."""
    if phase.mixes_rows:
        raise ConfigurationError(
            f"phase `{phase.name}` says `mixes_rows=True`: its layers synchronise (`sync=True`) or it gathers rows "
            "(`all_rows`), but with `Trainer.local_steps` a replica sees its own rows only. Leave `mixes_rows` out "
            "and give normalisations over the batch `sync=False`, which then normalise by a replica's own rows: "
            f"another model; {_OR}"
        )
    if isinstance(phase, Compute) and phase.state is not None:
        raise ConfigurationError(
            f"phase `{phase.name}` keeps history (`Compute(state=...)`), which sees the rows of all replicas in "
            f"every step; with `Trainer.local_steps` nothing is sent within a round: train without it, {_OR}"
        )
    if not phase.placement.on_every_replica(global_batch_size):
        raise ConfigurationError(
            f"phase `{phase.name}` runs on one device (`placement=ONE_DEVICE`, or `when_batch_at_least` of a "
            "larger batch); with `Trainer.local_steps` nothing is sent within a round: let it run on every replica "
            f"(`Experiment.placements = {{'{phase.name}': @on_every_replica()}}`), {_OR}"
        )


def _check_looks_at_no_loss(outer: Transform) -> None:
    """Raises an error if the `outer` optimizer reads the loss: a synchronization has no loss."""
    if any(part.name == "reduce_on_plateau" for part in outer.parts or (outer,)):
        raise ConfigurationError(
            "`Trainer.outer` has `reduce_on_plateau`, which reads the loss, but a synchronization has none: chain it "
            "with the phase's optimizer, or give the outer rate a schedule of rounds, such as `@cosine()`."
        )


def _check_copies(assembly: Assembly, outer: Transform) -> None:
    """Raises an error if `outer` keeps copies of the weights, or a phase's optimizer sets weights from a copy."""
    unread = [part.name for part in outer.parts or (outer,) if part.shadow]
    if unread:
        raise ConfigurationError(
            f"`Trainer.outer` has `{unread[0]}`, which keeps a copy of the weights to evaluate, but evaluation reads "
            "those of the phases' own optimizers: give an outer rule that moves the weights alone, as `@outer/sgd()`."
        )
    for phase in assembly.phases:
        parts = phase.optimizer.parts or (phase.optimizer,) if isinstance(phase, Update) else ()
        held = [part.name for part in parts if part.shadow and not part.observe]
        if held:
            raise ConfigurationError(
                f"phase `{phase.name}` trains by `{held[0]}`, which sets the weights by a copy that it keeps of them: "
                "what `Trainer.outer` makes of the weights it would undo. Average them (`Trainer.outer = None`), or "
                "train by another rule."
            )
