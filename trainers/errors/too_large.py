"""Checks whether a task's variables fit into this machine's memory before the task is made."""

from collections.abc import Callable, Iterable
from typing import TypeVar

import tensorflow as tf

from core.cluster.membership import joined
from core.distribution import backend_of
from core.distribution.shapes_only import shapes_only
from core.engine import Assembly
from core.errors import NoRoomError
from core.initializers import announced
from core.machine import machine_memory
from core.module import named_variables
from core.task import Task
from trainers.options.sizes import size

T = TypeVar("T")
LARGE = 16  # a task of 1/16 of the memory is checked before it is made


class _LargeError(BaseException):
    """Aborts the construction of a large task; a `BaseException`, so that no `except Exception` catches it."""


def fitting(make: Callable[[], Assembly], make_task: Callable[[], Task], strategy: tf.distribute.Strategy) -> Assembly:
    """Returns the result of `make`; raises a `NoRoomError` if this machine's memory is too small.

    A task that takes more than 1/16 of the memory is aborted, and measured with `make_task` from shapes alone. With
    several workers, each task is measured so before it is made. GPU memory isn't checked.
    """
    memory, so_far = machine_memory(), 0

    def count(values: int) -> None:
        nonlocal so_far
        so_far += values
        if so_far * LARGE > memory:
            raise _LargeError

    if any("GPU" in str(device) for device in backend_of(strategy).local_devices):
        return make()
    membership = joined()
    if (
        membership is None or membership.cluster.size == 1
    ):  # with several, none may stop while others wait for its values
        try:
            with announced(count):
                return make()
        except _LargeError:
            pass
    with shapes_only():
        task = make_task()
        _refuse(task, _held(named_variables(task).values(), strategy), memory, "variables")
        assembly = make()
    gradients = [v for optimizer in assembly.optimizers.values() for v in optimizer.parameters.values()]
    together = _held([*assembly.variables.values(), *gradients], strategy)
    _refuse(task, together, memory, "variables, slots of optimizers and gradients")
    return make()


def _held(variables: Iterable[tf.Variable], strategy: tf.distribute.Strategy) -> int:
    """Returns the bytes of `variables` on all local devices: a full copy on each device, or shards on a mesh."""
    backend = backend_of(strategy)
    return len(backend.local_devices) * sum(map(backend.bytes_per_device, variables))


def _refuse(task: Task, need: int, memory: int, what: str) -> None:
    if need > memory:
        raise NoRoomError(
            f"the {what} of `{type(task).__name__}` take {size(need)}, and this machine has {size(memory)} of memory. "
            "Make the task smaller, or train it on a mesh over more machines or GPUs "
            "(docs/choose-a-strategy.md#a-mesh-tensor-parallel): virtual CPU devices share one memory. "
            "`--mode=dry_run` says what each device would hold."
        )
