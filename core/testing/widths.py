"""Coordinate check of muP: activations start and move equally far at any width (Yang et al., 2022, appendix D.1).

>>> from core.optimizers import adam, mup
>>> from core import initializers, layers
>>> from core.task import Loss, Task, Update
>>> class Deep(Task):
...     def __init__(self, width, *, rng):
...         super().__init__()
...         self.first = layers.Linear(4, width, rng=rng.fold(0))
...         self.hidden = layers.Linear(width, width, rng=rng.fold(1))
...         self.last = layers.Linear(width, 1, rng=rng.fold(2), w_init=initializers.normal(1 / 8))
...         self.scale = 64 / width
...
...     def phases(self):
...         rule = mup(adam(0.01), base_width=64, plain=["first/w", "last/w"])
...         return [Update("net", loss=self.loss, trains=self, optimizer=rule)]
...
...     def loss(self, batch, rng):
...         x = tf.nn.relu(self.hidden(tf.nn.relu(self.first(batch["x"]))))
...         return Loss(tf.square(self.last(self.scale * x)[:, 0] - batch["y"]))
>>> batch = {"x": Rng.from_seed(1).normal([16, 4]), "y": tf.zeros([16])}
>>> sizes = assert_mup(Deep, batch, widths=(64, 256), seeds=1)
>>> [f"{size:.0f}" for size in sizes["hidden"].start]
['1', '1']
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from core.optimizers import Optimizer
from core.random import Rng
from core.task import Batch, Task
from core.task.module_calls import observed_calls
from core.testing.batch import HALFWAY, as_tensors
from core.testing.log_chart import log_chart
from core.testing.plain import optimizers_of, plain_step

HINTS = (
    "Usual reasons: an optimizer without `mup`; a hidden layer that `plain` of `mup` names; a network without "
    "`base_width`, whose output isn't multiplied by base_width / width; initial weights of a hidden layer that don't "
    "shrink as 1 / √fan_in; attention heads that grow with the width."
)


class Sizes(NamedTuple):
    """Root mean squares of a module's output before training, and of its change by training, one for each width."""

    start: Sequence[float]
    change: Sequence[float]


def assert_mup(
    task: Callable[..., Task],
    batch: Batch,
    widths: Sequence[int] = (64, 128, 256, 512),
    *,
    steps: int = 4,
    growth: float = 0.25,
    seeds: int = 3,
    picture: str | Path | None = None,
) -> dict[str, Sizes]:
    """Asserts that after `steps` steps on `batch` no module's output moves farther in wider networks, or less far.

    `task(width, rng=...)` makes the task. Sizes are compared as powers of the width: the exponent of a start is at most
    `growth`, and that of a change is between -2 `growth` and `growth`. Returns the sizes by module; `picture` is an SVG
    file for a drawing of the changes.
    """
    assert 2 <= len(widths) == len({*widths}), f"`widths` is {widths!r}; give two or more to compare."
    widths = sorted(widths)
    found = activation_sizes(task, batch, widths, steps=steps, seeds=seeds)
    if picture:
        lines = {path: sizes.change for path, sizes in found.items() if min(sizes.change) > 0.0}
        Path(picture).write_text(log_chart(f"Change of outputs in {steps} steps, by width", widths, lines))
    for path, sizes in found.items():
        for what, measured, least in (("start", sizes.start, -np.inf), ("change", sizes.change, -2.0 * growth)):
            if min(measured) > 0.0:
                power = float(np.polyfit(np.log(widths), np.log(measured), 1)[0])
                assert least <= power <= growth, (
                    f"the {what} of `{path}` {'grows' if power > 0.0 else 'shrinks'} with the width, as its power "
                    f"{power:.2f}: "
                    f"{', '.join(f'{x:.3g} at {width}' for width, x in zip(widths, measured, strict=True))}. {HINTS}"
                )
    return found


def activation_sizes(
    task: Callable[..., Task], batch: Batch, widths: Sequence[int], *, steps: int = 4, seeds: int = 3
) -> dict[str, Sizes]:
    """Returns the sizes of each module's output by path: means over `seeds`, for each of `widths`."""
    values = as_tensors(batch)
    at_width = [[_sizes(task, values, width, steps, seed) for seed in range(seeds)] for width in widths]
    mean = [{path: np.mean([found[path] for found in runs], axis=0) for path in runs[0]} for runs in at_width]
    return {path: Sizes(*np.transpose([found[path] for found in mean]).tolist()) for path in mean[0]}


def _sizes(
    make: Callable[..., Task], batch: Batch, width: int, steps: int, seed: int
) -> Mapping[str, tuple[float, float]]:
    rng = Rng.from_seed(seed, **HALFWAY)
    task = make(width, rng=rng.fold("init"))
    optimizers = optimizers_of(task)
    before = _outputs(task, optimizers, batch, rng)
    for i in range(steps):
        plain_step(task, optimizers, batch, rng.fold(i))
    after = _outputs(task, optimizers, batch, rng)
    return {path: (_size(x), _size(after[path] - x)) for path, x in before.items()}


def _outputs(task: Task, optimizers: Mapping[str, Optimizer], batch: Batch, rng: Rng) -> dict[str, tf.Tensor]:
    """Returns each module's first output in a step that writes nothing."""
    found: dict[str, tf.Tensor] = {}

    def hear(name: str, x: tf.Tensor) -> None:
        which, _, path = name.partition("/")
        if which == "returned":
            found.setdefault(path, tf.cast(x, tf.float32))

    with observed_calls(task, ["*"], hear):
        plain_step(task, optimizers, batch, rng, only="")
    return found


def _size(x: tf.Tensor) -> float:
    return float(tf.sqrt(tf.reduce_mean(tf.square(x))))
