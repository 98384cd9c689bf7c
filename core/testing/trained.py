"""Does some phase train every variable that the task has and uses?"""

from collections.abc import Sequence

from core.errors import ConfigurationError
from core.module import named_variables
from core.task import Batch, Task, standing
from core.testing.traced import Step, steps


def assert_all_trained(task: Task, batch: Batch, *, seed: int = 0) -> None:
    """Asserts that every trainable variable that a loss reads or the task holds is trained by a phase, or `frozen`."""
    check_trained(task, steps(task, batch, seed=seed))


def check_trained(task: Task, made: Sequence[Step]) -> None:
    """Asserts it, given the traced steps."""
    held = named_variables(task)
    for step in made:
        for variable in step.captured:
            assert any(variable is v for v in held.values()), (
                f"{step.name} reads the variable `{variable.name}`, which isn't part of the task: no phase trains it "
                "and no checkpoint holds it. Make it in `__init__`, and keep it as an attribute of a module."
            )
    try:
        standing.check_trained(task, task.phases())
    except ConfigurationError as error:
        raise AssertionError(str(error)) from None
