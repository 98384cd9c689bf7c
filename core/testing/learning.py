"""Checks that an update changes the right variables, and that a task learns one batch."""

from collections.abc import Sequence

import tensorflow as tf

from core.module import named_variables
from core.random import Rng
from core.task import Batch, Task, Update
from core.testing.batch import HALFWAY
from core.testing.plain import optimizers_of, plain_step


def assert_updates_only(
    task: Task, phase: str, module: tf.Module | Sequence[tf.Module], batch: Batch, *, seed: int = 0
) -> None:
    """Asserts that the update `phase` changes each parameter of `module`, and no variable outside `module`."""
    names = [p.name for p in task.phases() if isinstance(p, Update)]
    assert phase in names, f"there is no update `{phase}`; the task has {', '.join(f'`{name}`' for name in names)}."
    modules = [module] if isinstance(module, tf.Module) else module
    trained = {id(v) for m in modules for v in named_variables(m, trainable_only=True).values()}
    own = {id(v) for m in modules for v in named_variables(m).values()}
    before = {path: v.numpy() for path, v in named_variables(task).items()}
    plain_step(task, optimizers_of(task), batch, Rng.from_seed(seed, **HALFWAY), only=phase)
    for path, variable in named_variables(task).items():
        changed = before[path].tobytes() != variable.numpy().tobytes()
        assert changed or id(variable) not in trained, (
            f"phase `{phase}` left `{path}` as it was: its gradient is zero for this batch, or it isn't among `trains`."
        )
        assert not changed or id(variable) in own, (
            f"phase `{phase}` changed `{path}`, which isn't part of the module it should train: look at its `trains`."
        )


def assert_overfits(task: Task, batch: Batch, *, steps: int = 200, to: float = 0.1, seed: int = 0) -> None:
    """Asserts that after `steps` steps on one batch each phase's loss is at most `to` times its first value."""
    assert steps >= 2, f"`steps` is {steps}; it takes two to see a loss fall."
    optimizers = optimizers_of(task)

    @tf.function(autograph=False)
    def step(i: tf.Tensor) -> dict[str, tf.Tensor]:
        rng = Rng.from_seed(seed, step=i, progress=tf.cast(i, tf.float32) / steps)
        return plain_step(task, optimizers, batch, rng.fold(i))

    first = {name: float(x) for name, x in step(tf.constant(0, tf.int64)).items()}
    for i in range(1, steps):
        last = step(tf.constant(i, tf.int64))
    for name, start in first.items():
        end = float(last[name])
        assert start > 0.0, f"the loss of phase `{name}` starts at {start:.4g}; a fall to {to} times that says nothing."
        assert end <= to * start, (
            f"the loss of phase `{name}` went from {start:.4g} to {end:.4g} in {steps} steps on one batch, which is "
            f"not below {to} times the start. Check the labels, the learning rate, and that outputs have no "
            "activation the loss applies itself; or allow more `steps`."
        )
