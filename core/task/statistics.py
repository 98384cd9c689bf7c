"""Untrained state of layers. Each layer returns the new values, and the engine assigns them.

*Statistics* are sums that normalisation layers take over a batch. A step function makes a `Statistics`, passes it to
its layers and returns it in its `Loss`:

    def loss(self, batch, rng):
        statistics = Statistics()
        logits = self.net(batch["x"], rng, statistics=statistics)
        return Loss(softmax_cross_entropy(logits, batch["y"]), statistics=statistics)

The sums are additive: the caller adds the sums of all microbatches and replicas, then computes the new values of the
layers' averages once:

    >>> import tensorflow as tf
    >>> from core.layers import BatchNorm
    >>> norm, statistics = BatchNorm(1), Statistics()
    >>> _ = norm(tf.constant([[1.0], [3.0]]), statistics=statistics)
    >>> sums = tf.nest.map_structure(lambda a, b: a + b, statistics.sums, statistics.sums)  # two equal microbatches
    >>> commit(statistics.averages(sums))
    >>> norm.moving_mean.numpy(), norm.moving_variance.numpy()
    (array([2.], dtype=float32), array([1.], dtype=float32))

*Derived* state, such as the vector of `SpectralNorm`, is computed from the parameters alone, by `refreshed(module)`.
"""

import contextlib
import contextvars
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, Protocol

import tensorflow as tf

from core.choice import one_of
from core.module import named_variables, original

Values = dict[Any, tf.Tensor]  # by `variable.ref()`, because variables can't be keys of a dict


class Sums(NamedTuple):
    """A normalisation layer's count, sum and sum of squares per channel. Float64 keeps a small variance exact."""

    count: tf.Tensor  # []
    total: tf.Tensor  # [channels]
    square: tf.Tensor  # [channels]


class Averages(Protocol):
    """A layer that keeps moving averages of its statistics."""

    sync: bool  # whether it normalises with the rows of all replicas

    def averages(self, sums: Sums) -> Values:
        """Returns the layer's moving averages after a step with `sums`: `{variable.ref(): value}`, not yet assigned."""


SumOverReplicas = Callable[[Sums], Sums]

_sum_over_replicas: contextvars.ContextVar[SumOverReplicas] = contextvars.ContextVar("sum_over_replicas")
_noticed: contextvars.ContextVar[dict[Any, "Averages"]] = contextvars.ContextVar("noticed")


class Statistics:
    """The sums that layers add in one call of a step function, in the order of each layer's first call."""

    def __init__(self, sum_over_replicas: SumOverReplicas | None = None):
        # By default the engine's function from `summing_over_replicas`; in a unit test, the identity.
        self.sum_over_replicas = sum_over_replicas or _sum_over_replicas.get(lambda sums: sums)
        self.layers: dict[str, Averages] = {}
        self.sums: dict[str, Sums] = {}

    def add(self, layer: Averages, sums: Sums) -> None:
        """Adds `sums` to those of `layer`. A layer that is called twice thus has the sums of both calls."""
        layer = original(layer)  # a copy `with_values` has no averages of its own
        noticed = _noticed.get(None)
        if noticed is not None:
            noticed |= dict.fromkeys(layer.averages(sums), layer)
        key = next((key for key, known in self.layers.items() if known is layer), None)
        if key is None:
            # Numbered, so that all microbatches and replicas agree. Four digits, since `tf.nest` sorts keys as text.
            key = f"{len(self.layers):04d}"
            self.layers[key] = layer
            self.sums[key] = sums
        else:
            self.sums[key] = Sums(*(a + b for a, b in zip(self.sums[key], sums, strict=True)))

    def averages(self, sums: Mapping[str, Sums] | None = None) -> Values:
        """Returns all layers' next moving averages, `{variable.ref(): value}`, from `sums` (default: `self.sums`)."""
        values: Values = {}
        for key, layer_sums in (self.sums if sums is None else sums).items():
            values |= self.layers[key].averages(layer_sums)
        return values

    def moments(self, sums: Mapping[str, Sums] | None = None) -> Values:
        """Returns the mean and variance of `sums` alone, `{variable.ref(): value}`, of each layer with `moments`."""
        values: Values = {}
        for key, layer_sums in (self.sums if sums is None else sums).items():
            layer: Any = self.layers[key]
            if _has_moments(layer):
                values |= layer.moments(layer_sums)
        return values

    def __repr__(self) -> str:
        return f"Statistics({len(self.layers)} layers)"


@contextlib.contextmanager
def summing_over_replicas(function: SumOverReplicas) -> Iterator[None]:
    """Makes `Statistics()` in its `with` block sum over replicas with `function`. Engines need this."""
    token = _sum_over_replicas.set(function)
    try:
        yield
    finally:
        _sum_over_replicas.reset(token)


@contextlib.contextmanager
def noticing_averages() -> Iterator[Mapping[Any, Averages]]:
    """Records layers that add to a `Statistics` in its `with` block: yields `{variable.ref() of an average: layer}`."""
    token = _noticed.set({})
    try:
        yield _noticed.get()
    finally:
        _noticed.reset(token)


def averaged(module: tf.Module) -> dict[str, tf.Variable]:
    """Returns `{path: variable}`: the moving averages in `module`, which weight averaging must average too.

    Only layers with `moments(sums) -> Values` and `moving` count. `moving` lists the variables in these `Values`.
    """
    kept = {id(v) for part in (module, *module.submodules) if _has_moments(part) for v in part.moving}
    return {path: variable for path, variable in named_variables(module).items() if id(variable) in kept}


def _has_moments(part: Any) -> bool:
    return hasattr(type(part), "moments") and hasattr(type(part), "moving")


def refreshed(module: tf.Module) -> Values:
    """Returns the new derived state of `module` and its submodules, `{variable.ref(): value}`. It assigns nothing."""
    values: Values = {}
    for part in (module, *module.submodules):
        refresh = getattr(part, "refresh", None)
        if refresh is not None:
            values |= refresh()
    return values


def commit(values: Values, apply_if: tf.Tensor | None = None) -> None:
    """Assigns each value to its variable. If the scalar boolean `apply_if` is false, every variable keeps its bits."""
    for reference, value in values.items():
        variable = reference.deref()
        variable.assign(value if apply_if is None else one_of(apply_if, value, variable.read_value()))
