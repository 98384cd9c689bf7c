"""The vocabulary of a training step: a `Task` lists phases, a phase's step function returns a `Loss`.

    class SpiralTask(Task):
        def __init__(self, *, rng, optimizer):
            super().__init__()
            self.net = Mlp([2, 64, 2], rng=rng)
            self.optimizer = optimizer

        def phases(self):
            return [Update("net", loss=self.loss, trains=self.net, optimizer=self.optimizer)]

        def loss(self, batch, rng):
            logits = self.net(batch["x"])
            return Loss(softmax_cross_entropy(logits, batch["y"]))

A step function is a plain function: it can be called eagerly in a unit test, with no strategy and no trainer.
"""

import dataclasses
import enum
import re
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import tensorflow as tf

from core.data import Source
from core.errors import ConfigurationError
from core.metrics import State
from core.module import Module, named_variables
from core.optimizers.transform import Transform
from core.random import Rng
from core.statistics import Statistics

Batch = Mapping[str, tf.Tensor]


class Loss(NamedTuple):
    """What a step function returns: values per example, never their mean. The engine divides by the total weight."""

    per_example: tf.Tensor  # [batch], or [batch, ...] together with a weight of the same shape
    weight: tf.Tensor | None = None  # one per value; nothing is read where it is zero
    metrics: Mapping[str, tf.Tensor | State] = {}  # figures shaped and weighted like `per_example`, or additive states
    outputs: Mapping[str, tf.Tensor] = {}  # values [batch, ...] that later phases of the step find in their batch
    statistics: Statistics | None = None  # what normalisation layers saw; the engine moves their averages


class Placement(enum.Enum):
    """Where a phase runs."""

    EVERY_REPLICA = "every_replica"


EVERY_REPLICA = Placement.EVERY_REPLICA


@dataclasses.dataclass(frozen=True)
class Update:
    """Loss → gradients of `trains` → one reduction over the replicas → optimizer."""

    name: str
    _: dataclasses.KW_ONLY
    loss: Callable[[Batch, Rng], Loss]
    trains: tf.Module | Sequence[tf.Module]
    optimizer: Transform
    every: int = 1  # runs on steps that `every` divides: n-critic ratios, lazy penalties
    mixes_rows: bool = False  # a row's result depends on the others': the replicas take each microbatch together
    placement: Placement = EVERY_REPLICA

    def __post_init__(self) -> None:
        _check_name(self.name)
        _check_every(self.name, self.every)
        _check_placement(self.name, self.placement)
        if not isinstance(self.optimizer, Transform):
            raise TypeError(
                f"`optimizer` of phase `{self.name}` is {self.optimizer!r}; give a transform, for example "
                "`adamw(1e-3)` from `core.optimizers` (in gin `@adamw()`, with parentheses)."
            )
        modules = [self.trains] if isinstance(self.trains, tf.Module) else self.trains
        if not isinstance(modules, list | tuple) or not all(isinstance(module, tf.Module) for module in modules):
            raise TypeError(
                f"`trains` of phase `{self.name}` is {self.trains!r}; name a module, or a list of modules: their "
                "variables are what the phase trains."
            )
        paths: dict[int, str] = {}
        for path, variable in self.variables().items():
            if id(variable) in paths:
                raise ValueError(
                    f"`trains` of phase `{self.name}` holds one variable twice, as `{paths[id(variable)]}` and "
                    f"`{path}`: it would be updated twice a step. Name modules that don't contain each other."
                )
            paths[id(variable)] = path
        if not paths:
            raise ValueError(f"`trains` of phase `{self.name}` holds no trainable variable; name the module to train.")

    def variables(self) -> dict[str, tf.Variable]:
        """The trained variables by path; several modules are told apart by their place in `trains`."""
        if isinstance(self.trains, tf.Module):
            return named_variables(self.trains, trainable_only=True)
        return {
            f"{i}/{path}": variable
            for i, module in enumerate(self.trains)
            for path, variable in named_variables(module, trainable_only=True).items()
        }


@dataclasses.dataclass(frozen=True)
class Compute:
    """A forward pass: its outputs `{name: [batch, ...]}` appear in the batch of every later phase of the step."""

    name: str
    fn: Callable[[Batch, Rng], Mapping[str, tf.Tensor]]
    _: dataclasses.KW_ONLY
    every: int = 1
    mixes_rows: bool = False
    placement: Placement = EVERY_REPLICA

    def __post_init__(self) -> None:
        _check_name(self.name)
        _check_every(self.name, self.every)
        _check_placement(self.name, self.placement)


Phase = Update | Compute


class Task(Module):
    """What is trained and how: its networks (made in `__init__`) and its phases."""

    def phases(self) -> Sequence[Phase]:
        """The phases of one training step, in the order in which they run."""
        raise ConfigurationError(f"`{type(self).__name__}` needs `phases()`: a list of `Update` and `Compute`.")

    def check_source(self, source: Source) -> None:
        """Raises a `DataError` where `source` isn't what this task can learn from; called before the first step."""

    def evaluate(self, batch: Batch) -> Loss:
        """Loss and metrics of held-out examples."""
        raise ConfigurationError(f"`{type(self).__name__}` needs `evaluate(batch) -> Loss` to be evaluated.")


def _check_name(name: str) -> None:
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", name):
        raise ValueError(
            f"`name` of a phase is {name!r}; it appears in figures and checkpoints: use letters, digits and _."
        )


def _check_placement(name: str, placement: Placement) -> None:
    if not isinstance(placement, Placement):
        raise TypeError(f"`placement` of phase `{name}` is {placement!r}; use `EVERY_REPLICA` from `core.task`.")


def _check_every(name: str, every: int) -> None:
    if not isinstance(every, int) or every < 1:
        raise ValueError(f"`every` of phase `{name}` is {every!r}; it counts steps: give a whole number of at least 1.")
