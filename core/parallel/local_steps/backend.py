"""The backend of local steps, for any strategy whose replicas hold whole copies of the variables."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from core.distribution import Backend, Exchange
from core.engine import Assembly, TrainStep
from core.errors import ConfigurationError
from core.optimizers import Transform
from core.parallel.local_steps.checks import check_local_steps
from core.parallel.local_steps.exchange import LocalExchange
from core.parallel.local_steps.rounds import Rounds


class LocalSteps(Backend):
    """The backend of replicas that synchronize once per `round_steps` steps."""

    how = "with `Trainer.local_steps`"
    in_rounds = True
    steps_together = False
    separable = False

    def __init__(self, strategy: tf.distribute.Strategy, round_steps: int, outer: Transform | None = None):
        super().__init__(strategy)
        self.round_steps, self.outer = round_steps, outer

    def check_policies(self, skipping: Sequence[str], rolling_back: Sequence[str]) -> None:
        """Raises an error for policies that skip steps: other replicas learn of a bad step only after the round."""
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
