"""The mesh axes along which a task's variables and its optimizers' slots are sharded."""

import tensorflow as tf

from core.module import named_variables
from core.optimizers import Optimizer
from core.parallel.mesh.plan import MeshPlan
from core.parallel.mesh.scope import AxesByPath
from core.task import Task


def axes_of_task(plan: MeshPlan, task: Task) -> AxesByPath:
    """Returns `{path: (variable, axes)}` for the task's variables, with axes such as `("model", "-")`."""
    variables = named_variables(task)
    return {path: (variable, plan.layouts.of(path, variable.shape)) for path, variable in variables.items()}


def axes_of_slots(task: Task, plan: MeshPlan, optimizer: Optimizer) -> AxesByPath:
    """Returns `{path: (slot, axes)}` for the slots with the shape of their parameter; other slots stay whole."""
    slots = slots_of_shape(task, optimizer).items()
    return {own: (slot, plan.slots.of(path, slot.shape)) for own, (path, slot) in slots}


def slots_of_shape(task: Task, optimizer: Optimizer) -> dict[str, tuple[str, tf.Variable]]:
    """Returns `{path of slot: (path of parameter, slot)}` for the slots with the shape of their parameter."""
    paths = {id(variable): path for path, variable in named_variables(task).items()}
    return {
        f"{name}/{path}": (paths[id(parameter)], slot)
        for name, slots in optimizer.slots.items()
        for path, slot in slots.items()
        if (parameter := optimizer.parameters.get(path)) is not None and parameter.shape == slot.shape
    }
