"""Does some phase train every variable that the task has and uses?"""

import fnmatch
from collections.abc import Sequence

from core.arguments import listed
from core.module import named_variables
from core.task import Batch, Task, Update
from core.testing.traced import Step, steps


def assert_all_trained(task: Task, batch: Batch, *, except_for: Sequence[str] = (), seed: int = 0) -> None:
    """Asserts that every trainable variable that the task holds or a loss reads is in the `trains` of a phase."""
    check_trained(task, steps(task, batch, seed=seed), except_for)


def check_trained(task: Task, made: Sequence[Step], except_for: Sequence[str]) -> None:
    """Asserts it, given the traced steps."""
    trained = {id(v) for phase in task.phases() if isinstance(phase, Update) for v in phase.variables().values()}
    held = named_variables(task)
    frozen = getattr(task, "frozen", ())
    for step in made:
        for variable in step.captured:
            assert any(variable is v for v in held.values()), (
                f"{step.name} reads the variable `{variable.name}`, which isn't part of the task: no phase trains it "
                "and no checkpoint holds it. Make it in `__init__`, and keep it as an attribute of a module."
            )
    left = [
        path
        for path, variable in held.items()
        if variable.trainable
        and id(variable) not in trained
        and not any(fnmatch.fnmatch(path, pattern) for pattern in except_for)
        and not any(path == name or path.startswith(f"{name}/") for name in frozen)
    ]
    assert not left, (
        f"no phase trains {listed(left)}: {'it keeps its' if len(left) == 1 else 'they keep their'} first values for "
        "ever. Add the module to the `trains` of a phase, or make what isn't to be trained with `trainable=False`."
    )
