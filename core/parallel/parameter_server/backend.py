"""The backend of asynchronous training with parameter servers, and checks for features that it doesn't support."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import tensorflow as tf

from core.distribution import Backend, Exchange, register
from core.engine import Progress, TrainStep
from core.errors import ConfigurationError
from core.optimizers import Optimizer
from core.parallel.parameter_server.chunk import ServedChunk, ServedProgram
from core.parallel.parameter_server.exchange import ServedExchange
from core.parallel.parameter_server.strategy import ServedStrategy
from core.parallel.places import check_places, refuse_sharded
from core.task import Phase, Placement, Task, Update

_INSTEAD = (
    "By parameter servers each step is taken whole by one worker, and others at the same time: leave it out, or train "
    "on replicas (`@mirrored()`)."
)


@register(ServedStrategy)
class ServedBackend(Backend):
    """The backend of the chief. Workers run the steps."""

    strategy: ServedStrategy
    how = "with parameter servers (`@parameter_server()`)"
    not_compiled = "reach parameter servers"
    steps_together = False
    steps_here = False
    separable = False
    repeatable = False
    handed_over_by_any_thread = False
    reads_are_local = False
    evaluates_copy = True

    def kept_once(self) -> AbstractContextManager[Any]:
        """Returns a scope that places variables on the first server."""
        return self.strategy.scope(self.strategy.servers[0])

    def check_task(
        self, task: Task, phases: Sequence[Phase], *, placements: Mapping[str, Placement], one_device: Sequence[str]
    ) -> None:
        """Raises an error for placements, history, and a `divide_by_staleness` that can't change the step size."""
        check_served(self.strategy, task, phases, placements=placements, one_device=one_device)

    def check_optimizers(self, task: Task, optimizers: Sequence[Optimizer]) -> None:
        """Raises an error for rules with `sharded=True`."""
        refuse_sharded(optimizers, instead=_INSTEAD)

    def check_local_steps(self) -> None:
        """Raises a `ConfigurationError` for local steps, because workers never wait for each other."""
        raise ConfigurationError(
            "`Trainer.local_steps` is for replicas that synchronize, but the workers of `@parameter_server()` never "
            "wait for each other. Train on replicas (`@multi_worker()`), or leave `Trainer.local_steps` out."
        )

    def check_policies(self, skipping: Sequence[str], rolling_back: Sequence[str]) -> None:
        """Raises an error for every policy for bad steps, because workers run steps asynchronously."""
        for name in (*skipping, *rolling_back):
            raise ConfigurationError(
                f"{name} is for steps that all replicas take together, but with `@parameter_server()` each worker "
                "takes separate steps, whose results others have read already: leave it out, or train on replicas "
                "(`@mirrored()`)."
            )

    def exchange(self, *, reduce_in: tf.DType | None = None) -> Exchange:
        """Makes the object through which a worker reads variables from servers and sends them gradients."""
        return ServedExchange(self.strategy, reduce_in=reduce_in)

    def chunk(self, train_step: TrainStep, stacked_spec: Mapping[str, tf.TensorSpec], progress: Progress) -> Any:
        """Makes the function whose trace schedules a chunk's steps on workers."""
        return ServedChunk(train_step, stacked_spec, progress)

    def settle(self, program: ServedProgram) -> None:
        """Waits until all scheduled steps are done. Then workers that were asked to stop may leave."""
        program.settle()

    def figures(self, program: ServedProgram) -> dict[str, float]:
        """Returns the mean and largest staleness of gradients since the last call. Its unit is updates."""
        return program.figures()


def check_served(
    strategy: ServedStrategy,
    task: Task,
    phases: Sequence[Phase],
    *,
    placements: Mapping[str, Placement],
    one_device: Sequence[str],
) -> None:
    """Raises an error for placements, history, or a `divide_by_staleness` that has no effect on the step size."""
    check_places(task, placements=placements, one_device=one_device, instead=_INSTEAD)
    for phase in phases:
        if strategy.divide_by_staleness and isinstance(phase, Update) and not phase.optimizer.linear:
            raise ConfigurationError(
                f"`parameter_server.divide_by_staleness` divides gradients, but the optimizer of phase `{phase.name}` "
                f"(`{phase.optimizer.name}`) isn't linear in them: a rule like Adam's would take a step of the same "
                "length. Leave it out, bound their age by `parameter_server.max_staleness`, or train by `sgd`."
            )
