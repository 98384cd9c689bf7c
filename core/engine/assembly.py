"""A task and its optimizers, made where they belong: on every replica, or on the one device that the task names."""

from collections.abc import Callable, Collection

import tensorflow as tf

from core.errors import ConfigurationError
from core.module import named_variables
from core.optimizers import Optimizer
from core.task import Task, Update


def assemble_task(make: Callable[[], Task], strategy: tf.distribute.Strategy) -> Task:
    """The task that `make` makes inside the strategy's scope, with what it names in `one_device` on one device."""
    with strategy.scope():
        task = make()
    if task.one_device and strategy.num_replicas_in_sync > 1:
        # The same task once more, outside the scope, to take from it what isn't to be replicated.
        with tf.device(_device(strategy)):
            plain = make()
        for name in task.one_device:
            _check_apart(task, name)
            setattr(task, name, _network(plain, name))
    return task


def kept_alone(task: Task, strategy: tf.distribute.Strategy) -> set[int]:
    """The ids of the variables that live on one device only."""
    if strategy.num_replicas_in_sync == 1:
        return set()
    return {id(v) for name in task.one_device for v in named_variables(_network(task, name)).values()}


def assemble_optimizer(phase: Update, strategy: tf.distribute.Strategy, alone: Collection[int]) -> Optimizer:
    """The optimizer of a phase, its state beside the variables that it trains."""
    variables = phase.variables()
    apart = [path for path, variable in variables.items() if id(variable) in alone]
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


def _network(task: Task, name: str) -> tf.Module:
    network = getattr(task, name, None)
    if not isinstance(network, tf.Module):
        raise ConfigurationError(
            f"`{type(task).__name__}.one_device` names `{name}`, which is {network!r}; name attributes that hold a "
            "network."
        )
    return network


def _check_apart(task: Task, name: str) -> None:
    """A network that moves to one device mustn't leave a part of it behind, which would live on as a second copy."""
    network = _network(task, name)
    own = {id(variable): path for path, variable in named_variables(network).items()}
    delattr(task, name)
    shared = [path for path, variable in named_variables(task).items() if id(variable) in own]
    setattr(task, name, network)
    if shared:
        raise ConfigurationError(
            f"`{type(task).__name__}.one_device` names `{name}`, but its variable `{shared[0]}` belongs to another "
            "attribute of the task as well: it can't be in both places. Name both, as one module that holds all of it, "
            "or keep the network on every replica."
        )
