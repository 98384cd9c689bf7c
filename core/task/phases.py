"""The phases of a training step, `Update` and `Compute`, and their placement: every replica or one device."""

import dataclasses
import functools
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gin
import tensorflow as tf

from core.arguments import check_positive
from core.module import named_variables
from core.optimizers.transform import Transform
from core.random import Rng
from core.task.loss import Batch, Loss
from core.task.statistics import averaged


@dataclasses.dataclass(frozen=True)
class Placement:
    """Where a phase runs: on every replica if the global batch has enough rows, else on one device."""

    every_replica_from: int | None  # a global batch size; None is never

    def on_every_replica(self, global_batch_size: int) -> bool:
        """Says whether the phase runs on every replica instead of on one device."""
        return self.every_replica_from is not None and global_batch_size >= self.every_replica_from


EVERY_REPLICA = Placement(0)
ONE_DEVICE = Placement(None)


@gin.configurable
def on_every_replica() -> Placement:
    """Returns `EVERY_REPLICA`, for gin files: each replica computes its rows."""
    return EVERY_REPLICA


@gin.configurable
def on_one_device() -> Placement:
    """Returns `ONE_DEVICE`, for gin files: one device of each worker computes the whole global batch."""
    return ONE_DEVICE


@gin.configurable
def when_batch_at_least(rows: int) -> Placement:
    """Places a phase on every replica if the global batch has at least `rows` rows, else on one device."""
    if rows < 1:
        raise ValueError(f"`rows` of `when_batch_at_least` is {rows}; it is a global batch size: give 1 or more.")
    return Placement(rows)


@dataclasses.dataclass(frozen=True)
class Update:
    """An update: loss → gradients of `trains` → one reduction over the replicas → optimizer."""

    name: str
    _: dataclasses.KW_ONLY
    loss: Callable[[Batch, Rng], Loss]
    trains: tf.Module | Sequence[tf.Module]
    optimizer: Transform
    every: int = 1  # runs on steps that `every` divides: n-critic ratios, lazy penalties
    mixes_rows: bool = False  # a row's result depends on other rows: the replicas take each microbatch together
    microbatches: int | None = None  # fewer than the trainer's, which they divide: for a phase that needs less memory
    placement: Placement = EVERY_REPLICA
    through: str | None = None  # a `Compute`: the loss reads its outputs, and gradients continue through it
    clip_examples: float | None = None  # the largest norm of one example's gradient; each example has its own pass
    sampled_loss: Callable[[Batch, Rng], Loss] | None = None  # `loss` of labels drawn from the model, weighted alike

    def __post_init__(self) -> None:
        _check_phase(self)
        if not isinstance(self.optimizer, Transform):
            raise TypeError(
                f"`optimizer` of phase `{self.name}` is {self.optimizer!r}; give a transform, for example "
                "`adamw(1e-3)` from `core.optimizers` (in gin `@adamw()`, with parentheses)."
            )
        if not (self.through is None or isinstance(self.through, str)):
            raise TypeError(
                f"`through` of phase `{self.name}` is {self.through!r}; name one `Compute`, which makes all that the "
                "loss reads of the networks that the phase trains."
            )
        if self.clip_examples is not None:
            check_positive(clip_examples=self.clip_examples)
            for other in ("mixes_rows", "through", "microbatches"):
                if getattr(self, other):
                    raise ValueError(
                        f"phase `{self.name}` has `clip_examples`, which takes each example by itself, and `{other}`, "
                        "which takes several together: leave one out."
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
                    f"`{path}`: it would be updated twice a step. Name modules that don't contain each other; networks "
                    "that share weights are trained as one module that holds them (`self.both = Both(a, b)`)."
                )
            paths[id(variable)] = path
        if not paths:
            raise ValueError(f"`trains` of phase `{self.name}` holds no trainable variable; name the module to train.")

    def variables(self) -> dict[str, tf.Variable]:
        """Returns the trained variables by path. If `trains` is a list, a path begins with the module's index."""
        return self._by_path(functools.partial(named_variables, trainable_only=True))

    def statistics(self) -> dict[str, tf.Variable]:
        """Returns the moving averages of the trained modules, by path. Paths are as in `variables`."""
        return self._by_path(averaged)

    def _by_path(self, found: Callable[[tf.Module], Mapping[str, tf.Variable]]) -> dict[str, tf.Variable]:
        if isinstance(self.trains, tf.Module):
            return dict(found(self.trains))
        return {f"{i}/{path}": v for i, module in enumerate(self.trains) for path, v in found(module).items()}


@dataclasses.dataclass(frozen=True)
class Compute:
    """A forward pass. Its outputs `{name: [batch, ...]}` are in the batch of every later phase of the step.

    With `state`, a module whose variables keep history, `fn(batch, rng)` returns `(outputs, {variable.ref(): value})`.
    Then `fn` is called once per step, on one device, with the whole global batch in row order.
    """

    name: str
    fn: Callable[[Batch, Rng], Any]
    _: dataclasses.KW_ONLY
    every: int = 1
    mixes_rows: bool = False
    microbatches: int | None = None
    placement: Placement = EVERY_REPLICA
    state: tf.Module | None = None

    def __post_init__(self) -> None:
        _check_phase(self)
        if self.state is not None and not isinstance(self.state, tf.Module):
            raise TypeError(f"`state` of phase `{self.name}` is {self.state!r}; name the module whose variables it is.")

    def outputs(self, batch: Batch, rng: Rng) -> Mapping[str, tf.Tensor]:
        """Calls `fn` and returns its outputs `{name: [batch, ...]}`, without the new values of `state`."""
        outputs: Mapping[str, tf.Tensor] = self.fn(batch, rng) if self.state is None else self.fn(batch, rng)[0]
        return outputs


Phase = Update | Compute


def _check_phase(phase: Phase) -> None:
    name = phase.name
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", name):
        raise ValueError(
            f"`name` of a phase is {name!r}; it appears in metrics and checkpoints: use letters, digits and _."
        )
    for argument, value in {"every": phase.every, "microbatches": phase.microbatches}.items():
        absent = argument == "microbatches" and value is None
        if not absent and (not isinstance(value, int) or value < 1):
            raise ValueError(f"`{argument}` of phase `{name}` is {value!r}; give a whole number of at least 1.")
    if not isinstance(phase.placement, Placement):
        raise TypeError(
            f"`placement` of phase `{name}` is {phase.placement!r}; use `EVERY_REPLICA`, `ONE_DEVICE` or "
            "`when_batch_at_least(n)` from `core.task`."
        )
