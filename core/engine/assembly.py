"""`Assembly`: a task and its optimizers, with each variable on every replica or on one device.

assembly = assemble(lambda: SpiralTask(rng=rng, optimizer=adamw(1e-3)), strategy)
step = TrainStep(assembly, batch_spec, seed=0)
"""

import dataclasses
import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TypeVar

import tensorflow as tf

from core.distribution.backend import Backend
from core.distribution.registry import backend_of
from core.distribution.shapes_only import made
from core.errors import ConfigurationError
from core.module import named_variables
from core.optimizers import Optimizer
from core.task import Phase, Placement, Task, Update
from core.task.checks import check_unshared, check_variables, checked_phases, one_device_network, placed_phases
from core.task.trained import check_trained

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Assembly:
    """A task with its phases, optimizers, strategy and variables: the input of a training step."""

    task: Task
    phases: Sequence[Phase]  # with their final placements
    optimizers: Mapping[str, Optimizer]  # by the name of their update
    strategy: tf.distribute.Strategy
    variables: Mapping[str, tf.Variable]  # everything learnt: `task/PATH`, `optimizer/PHASE/PATH`
    one_device_ids: Collection[int]  # the ids of the variables that are on one device only

    @functools.cached_property
    def backend(self) -> Backend:
        """Returns the backend of the strategy."""
        return backend_of(self.strategy)

    @functools.cached_property
    def task_variables(self) -> Mapping[str, tf.Variable]:
        """Returns the task's variables by path, `{"net/dense/w": variable}`."""
        return {path.removeprefix("task/"): v for path, v in self.variables.items() if path.startswith("task/")}

    def made_with(self, update: str, make: Callable[[], T]) -> T:
        """Calls `make()` so that its variables are on the devices of the variables that `update` trains."""
        if any(id(variable) in self.one_device_ids for variable in self.optimizers[update].parameters.values()):
            return made(make, lambda: tf.device(_device(self.strategy)))
        return self.backend.make_whole(make)


def assemble(
    make_task: Callable[[], Task],
    strategy: tf.distribute.Strategy,
    *,
    placements: Mapping[str, Placement] = {},
    one_device: Sequence[str] = (),
) -> Assembly:
    """Makes a task and its optimizers in the strategy's scope, and checks placements and trained variables.

    `placements` `{phase: placement}` replaces the placements of these phases. `one_device` names networks that stay on
    one device, in addition to `Task.one_device`.
    """
    task = assemble_task(make_task, strategy, placements=placements, one_device=one_device)
    phases = placed_phases(checked_phases(task), placements)
    ids = set[int]()
    if strategy.num_replicas_in_sync > 1:
        networks = [one_device_network(task, name) for name in (*task.one_device, *one_device)]
        ids = {id(variable) for network in networks for variable in named_variables(network).values()}
    backend = backend_of(strategy)
    backend.check_task(task, phases, placements=placements, one_device=one_device)
    own = named_variables(task)
    check_variables(task, own, phases, strategy, ids)
    check_trained(task, own, phases)
    updates = [phase for phase in phases if isinstance(phase, Update)]
    optimizers = {phase.name: _optimizer(phase, task, strategy, ids) for phase in updates}
    backend.check_optimizers(task, [*optimizers.values()])
    variables = {f"task/{path}": v for path, v in own.items()}
    for phase, optimizer in optimizers.items():
        variables |= {f"optimizer/{phase}/{path}": v for path, v in optimizer.variables.items()}
    return Assembly(task, phases, optimizers, strategy, variables, ids)


def assemble_task(
    make_task: Callable[[], Task],
    strategy: tf.distribute.Strategy,
    *,
    placements: Mapping[str, Placement] = {},
    one_device: Sequence[str] = (),
) -> Task:
    """Makes a task in the strategy's scope; networks named in `Task.one_device` or `one_device` stay on one device."""
    task = backend_of(strategy).make_task(make_task, placements=placements, one_device=one_device)
    names = dict.fromkeys((*task.one_device, *one_device))
    if names and strategy.num_replicas_in_sync > 1:
        # The task is made again outside the scope, to take its one-device networks from it.
        plain = made(make_task, lambda: tf.device(_device(strategy)))
        for name in names:
            check_unshared(task, name)
            setattr(task, name, one_device_network(plain, name))
    for name in names:
        one_device_network(task, name)
    return task


def _optimizer(
    phase: Update, task: Task, strategy: tf.distribute.Strategy, one_device_ids: Collection[int]
) -> Optimizer:
    """Makes the optimizer of `phase`. Its slots are on the devices of the variables that `phase` trains."""
    variables = phase.variables()
    make = functools.partial(Optimizer, phase.optimizer, variables, statistics=phase.statistics())
    apart = [path for path, variable in variables.items() if id(variable) in one_device_ids]
    if not apart:
        return backend_of(strategy).make_optimizer(make, task)
    if len(apart) < len(variables):
        raise ConfigurationError(
            f"phase `{phase.name}` trains `{apart[0]}`, which the task keeps on one device (`one_device`), together "
            "with variables that it doesn't: make two phases of it, or keep both networks in one place."
        )
    return made(make, lambda: tf.device(_device(strategy)))


def _device(strategy: tf.distribute.Strategy) -> str:
    return str(strategy.extended.worker_devices[0])
