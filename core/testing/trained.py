"""Checks that the phases of a task train all of its variables."""

from collections.abc import Sequence

from core.engine.side_effects import foreign_variables, paths_by_id
from core.errors import ConfigurationError
from core.module import named_variables
from core.task import Batch, Task, trained
from core.testing.traced import Step, steps


def assert_all_trained(task: Task, batch: Batch, *, seed: int = 0) -> None:
    """Asserts that a phase trains each trainable variable of the task and its losses that isn't `frozen`."""
    check_trained(task, steps(task, batch, seed=seed))


def check_trained(task: Task, made: Sequence[Step]) -> None:
    """Asserts for the traced steps `made` that a phase trains each variable that isn't `frozen`."""
    variables = named_variables(task)
    held = paths_by_id(variables)
    for step in made:
        assert (message := next(foreign_variables(step.function.graph, held, step.name), None)) is None, message
    try:
        trained.check_trained(task, variables, task.phases())
    except ConfigurationError as error:
        raise AssertionError(str(error)) from None
