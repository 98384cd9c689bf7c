"""Refuses what a step function mustn't do, while it is being traced: each error names the phase."""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import tensorflow as tf

from core.arguments import listed
from core.errors import ConfigurationError
from core.rows import sharing_rows
from core.task.statistics import summing_over_replicas


@contextlib.contextmanager
def no_new_variables(name: str) -> Iterator[None]:
    """Refuses variables that are made while a step function is being traced."""

    def refuse(_: Any, **kwargs: Any) -> tf.Variable:
        raise ValueError(
            f"phase `{name}` made a variable (`{kwargs.get('name') or 'Variable'}`) inside its step function. "
            "Variables are made once, in `__init__` of a module, where the strategy, the optimizer and the checkpoint "
            "can see them: move it there."
        )

    with tf.variable_creator_scope(refuse):
        yield


@contextlib.contextmanager
def no_synchronisation(name: str) -> Iterator[None]:
    """Refuses layers that sum over the replicas, and rows that are gathered, in a phase that doesn't say so."""

    def refuse(sums: Any) -> Any:
        raise ConfigurationError(
            f"a layer of phase `{name}` sums over the replicas (`sync=True`), so that rows depend on each other: say "
            "`mixes_rows=True` for the phase, and its replicas take each microbatch together."
        )

    with summing_over_replicas(refuse), sharing_rows(_RefusedRows(name)):
        yield


class _RefusedRows:
    """Are the rows of a phase that doesn't say that it mixes them."""

    def __init__(self, name: str):
        self.name = name

    def all(self, x: tf.Tensor) -> tf.Tensor:
        raise ConfigurationError(
            f"phase `{self.name}` gathers the rows of all replicas (`all_rows`, which losses of contrast call), so "
            "that rows depend on each other: say `mixes_rows=True` for the phase, and its replicas take each "
            "microbatch together."
        )

    own = all


def refuse_missing_gradients(gradients: Mapping[str, Any], name: str) -> None:
    """Raises an error that names the variables without a gradient."""
    missing = [path for path, gradient in gradients.items() if gradient is None]
    if missing:
        raise ValueError(
            f"phase `{name}` trains {listed(missing)}, but its loss doesn't depend on "
            f"{'it' if len(missing) == 1 else 'them'} (the gradient is None). Use "
            f"{'it' if len(missing) == 1 else 'them'} in the loss, or leave {'it' if len(missing) == 1 else 'them'} "
            "out of `trains`. `tf.stop_gradient`, an integer cast or `argmax` on the way also cuts a gradient off."
        )
