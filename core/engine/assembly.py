"""A task with all that a step of it needs, made where it belongs: on every replica, or on one device.

assembly = assemble(lambda: SpiralTask(rng=rng, optimizer=adamw(1e-3)), strategy)
step = TrainStep(assembly, batch_spec, seed=0)
"""

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import tensorflow as tf

from core.errors import ConfigurationError, did_you_mean
from core.module import named_variables
from core.optimizers import Optimizer
from core.task import ONE_DEVICE, Compute, Phase, Placement, Task, Update
from core.task.checks import checked_phases


@dataclasses.dataclass(frozen=True)
class Assembly:
    """What a training step is made of."""

    task: Task
    phases: Sequence[Phase]  # in the places where they run
    optimizers: Mapping[str, Optimizer]  # by the name of their update
    strategy: tf.distribute.Strategy
    variables: Mapping[str, tf.Variable]  # all that is learnt: `task/PATH`, `optimizer/PHASE/PATH`
    one_device_ids: Collection[int]  # the ids of the variables that live on one device only


def assemble(
    make_task: Callable[[], Task],
    strategy: tf.distribute.Strategy,
    *,
    placements: Mapping[str, Placement] = {},
    one_device: Sequence[str] = (),
) -> Assembly:
    """Makes a task and its optimizers within the strategy's scope, and checks that every variable is in its place.

    `placements` replace those of the phases that they name; `one_device` names networks of the task that live on one
    device only, beside those that the task names itself.
    """
    task = assemble_task(make_task, strategy, one_device=one_device)
    phases = _placed(checked_phases(task), placements)
    ids = set[int]()
    if strategy.num_replicas_in_sync > 1:
        networks = [_network(task, name) for name in (*task.one_device, *one_device)]
        ids = {id(variable) for network in networks for variable in named_variables(network).values()}
    _check_variables(task, phases, strategy, ids)
    updates = [phase for phase in phases if isinstance(phase, Update)]
    optimizers = {phase.name: _optimizer(phase, strategy, ids) for phase in updates}
    variables = {f"task/{path}": v for path, v in named_variables(task).items()}
    for phase, optimizer in optimizers.items():
        variables |= {f"optimizer/{phase}/{path}": v for path, v in optimizer.variables.items()}
    return Assembly(task, phases, optimizers, strategy, variables, ids)


def assemble_task(
    make_task: Callable[[], Task], strategy: tf.distribute.Strategy, *, one_device: Sequence[str] = ()
) -> Task:
    """Makes a task within the strategy's scope, with the networks of `one_device`, its own and these, on one device."""
    with strategy.scope():
        task = make_task()
    names = dict.fromkeys((*task.one_device, *one_device))
    if names and strategy.num_replicas_in_sync > 1:
        # The same task once more, outside the scope, to take from it what isn't to be replicated.
        with tf.device(_device(strategy)):
            plain = make_task()
        for name in names:
            _check_unshared(task, name)
            setattr(task, name, _network(plain, name))
    for name in names:
        _network(task, name)
    return task


def _placed(phases: Sequence[Phase], placements: Mapping[str, Placement]) -> list[Phase]:
    names = [phase.name for phase in phases]
    for name, placement in placements.items():
        if name not in names:
            raise ConfigurationError(
                f"`Experiment.placements` names the phase `{name}`; the task has "
                f"{', '.join(f'`{known}`' for known in names)}.{did_you_mean(name, names)}"
            )
        phase = phases[names.index(name)]
        if isinstance(phase, Compute) and phase.state is not None and placement != ONE_DEVICE:
            raise ConfigurationError(
                f"`Experiment.placements` gives phase `{name}` {placement!r}, but the phase keeps history (`state`) "
                "and so always runs on one device: leave it out."
            )
    return [
        dataclasses.replace(phase, placement=placements[phase.name]) if phase.name in placements else phase
        for phase in phases
    ]


def _optimizer(phase: Update, strategy: tf.distribute.Strategy, one_device_ids: Collection[int]) -> Optimizer:
    """Makes the optimizer of a phase, its state beside the variables that it trains."""
    variables = phase.variables()
    apart = [path for path, variable in variables.items() if id(variable) in one_device_ids]
    if not apart:
        with strategy.scope():
            return Optimizer(phase.optimizer, variables)
    if len(apart) < len(variables):
        raise ConfigurationError(
            f"phase `{phase.name}` trains `{apart[0]}`, which the task keeps on one device (`one_device`), together "
            "with variables that it doesn't: make two phases of it, or keep both networks in one place."
        )
    with tf.device(_device(strategy)):
        return Optimizer(phase.optimizer, variables)


def _device(strategy: tf.distribute.Strategy) -> str:
    return str(strategy.extended.worker_devices[0])


def _named_by(task: Task, name: str) -> str:
    owner = type(task).__name__ if name in task.one_device else "Experiment"
    return f"`{owner}.one_device` names `{name}`"


def _network(task: Task, name: str) -> tf.Module:
    network: Any = getattr(task, name, None)
    if not isinstance(network, tf.Module):
        known = [key for key, value in vars(task).items() if isinstance(value, tf.Module)]
        raise ConfigurationError(
            f"{_named_by(task, name)}, which is {network!r}; name attributes that hold a network: "
            f"`{type(task).__name__}` has {', '.join(f'`{key}`' for key in known)}.{did_you_mean(name, known)}"
        )
    return network


def _check_unshared(task: Task, name: str) -> None:
    """Refuses a network that shares a variable: it would leave a part behind, which lived on as a second copy."""
    network = _network(task, name)
    own = {id(variable): path for path, variable in named_variables(network).items()}
    delattr(task, name)
    shared = [path for path, variable in named_variables(task).items() if id(variable) in own]
    setattr(task, name, network)
    if shared:
        raise ConfigurationError(
            f"{_named_by(task, name)}, but its variable `{shared[0]}` belongs to another attribute of the task as "
            "well: it can't be in both places. Name both, as one module that holds all of it, or keep the network on "
            "every replica."
        )


def _check_variables(
    task: Task, phases: Sequence[Phase], strategy: tf.distribute.Strategy, one_device_ids: Collection[int]
) -> None:
    """Each variable belongs to the strategy, and what is trained to the task."""
    name, variables = type(task).__name__, named_variables(task)
    known = {id(variable) for variable in variables.values()}
    for phase in phases:
        for path, variable in phase.variables().items() if isinstance(phase, Update) else ():
            if id(variable) not in known:
                raise ConfigurationError(
                    f"phase `{phase.name}` trains `{path}`, which isn't part of `{name}`: no checkpoint would hold it. "
                    "Make the network in `__init__` of the task and keep it there as an attribute (`self.net = ...`)."
                )
    for path, variable in variables.items():
        # Outside the scope it would train to wrong numbers without an error (TensorFlow issue 41768).
        if id(variable) not in one_device_ids and not strategy.extended.variable_created_in_scope(variable):
            raise ConfigurationError(
                f"variable `{path}` of `{name}` was made outside the strategy's scope. Make it in the task's "
                "`__init__`, which is called inside `strategy.scope()`; don't make it when a module is imported or in "
                "`phases()`, and don't share it between tasks."
            )
