"""Does some phase train every variable that the task has and uses?"""

import fnmatch
from collections.abc import Sequence

from core.arguments import listed
from core.module import named_variables
from core.task import Batch, Task
from core.task.standing import standings
from core.testing.traced import Step, steps


def assert_all_trained(task: Task, batch: Batch, *, except_for: Sequence[str] = (), seed: int = 0) -> None:
    """Asserts that every trainable variable that the task holds or a loss reads is in the `trains` of a phase."""
    check_trained(task, steps(task, batch, seed=seed), except_for)


def check_trained(task: Task, made: Sequence[Step], except_for: Sequence[str]) -> None:
    """Asserts it, given the traced steps."""
    held = named_variables(task)
    for step in made:
        for variable in step.captured:
            assert any(variable is v for v in held.values()), (
                f"{step.name} reads the variable `{variable.name}`, which isn't part of the task: no phase trains it "
                "and no checkpoint holds it. Make it in `__init__`, and keep it as an attribute of a module."
            )
    left = [
        standing.path
        for standing in standings(task, task.phases())
        if standing.forgotten and not any(fnmatch.fnmatch(standing.path, pattern) for pattern in except_for)
    ]
    assert not left, (
        f"no phase trains {listed(left)}: {'it keeps its' if len(left) == 1 else 'they keep their'} first values for "
        "ever. Add the module to the `trains` of a phase, name it in `frozen` of the task, or make what isn't to be "
        "trained with `trainable=False`."
    )
