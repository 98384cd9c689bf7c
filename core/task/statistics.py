"""Untrained state: layers return it for the engine to commit; they assign nothing.

*Statistics* are sums that normalisation layers take over a batch. A step function makes a `Statistics`, passes it to
its layers and returns it in its `Loss`:

    def loss(self, batch, rng):
        statistics = Statistics()
        logits = self.net(batch["x"], rng, statistics=statistics)
        return Loss(softmax_cross_entropy(logits, batch["y"]), statistics=statistics)

The sums are additive: the caller of the step adds those of its microbatches and replicas, then asks once for the new
values of the layers' averages:

    >>> import tensorflow as tf
    >>> from core.layers import BatchNorm
    >>> norm, statistics = BatchNorm(1), Statistics()
    >>> _ = norm(tf.constant([[1.0], [3.0]]), statistics=statistics)
    >>> sums = tf.nest.map_structure(lambda a, b: a + b, statistics.sums, statistics.sums)  # two equal microbatches
    >>> commit(statistics.averages(sums))
    >>> norm.moving_mean.numpy(), norm.moving_variance.numpy()
    (array([2.], dtype=float32), array([1.], dtype=float32))

*Derived* state, such as a power iteration's vector, depends on the parameters alone: `refreshed(module)` collects it.
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
    """A normalisation layer's sums per channel; in float64, where the squares of a large mean don't cancel."""

    count: tf.Tensor  # []
    total: tf.Tensor  # [channels]
    square: tf.Tensor  # [channels]


class Averages(Protocol):
    """A layer that keeps moving averages."""

    sync: bool  # whether it normalises with the rows of all replicas

    def averages(self, sums: Sums) -> Values:
        """Returns the new values of its averages after a step with these sums; assigns nothing."""


SumOverReplicas = Callable[[Sums], Sums]

_sum_over_replicas: contextvars.ContextVar[SumOverReplicas] = contextvars.ContextVar("sum_over_replicas")
_noticed: contextvars.ContextVar[dict[Any, "Averages"]] = contextvars.ContextVar("noticed")


class Statistics:
    """The sums of one call of a step function, by layer in the order in which they were first added."""

    def __init__(self, sum_over_replicas: SumOverReplicas | None = None):
        # By default the engine's function from `summing_over_replicas`; in a unit test, the identity.
        self.sum_over_replicas = sum_over_replicas or _sum_over_replicas.get(lambda sums: sums)
        self.layers: dict[str, Averages] = {}
        self.sums: dict[str, Sums] = {}

    def add(self, layer: Averages, sums: Sums) -> None:
        """Adds the sums of `layer`; a layer that is called twice has both calls in its sums."""
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
        """Returns the layers' next averages, given sums in the structure of `self.sums` (by default, those)."""
        values: Values = {}
        for key, layer_sums in (self.sums if sums is None else sums).items():
            values |= self.layers[key].averages(layer_sums)
        return values

    def moments(self, sums: Mapping[str, Sums] | None = None) -> Values:
        """Returns the moments of these sums alone, for layers that have `moments` (see `averaged`)."""
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
    """Makes `Statistics()` sum over replicas with `function`, in its context: for engines, around a step function."""
    token = _sum_over_replicas.set(function)
    try:
        yield
    finally:
        _sum_over_replicas.reset(token)


@contextlib.contextmanager
def noticing_averages() -> Iterator[Mapping[Any, Averages]]:
    """Collects, in its context, the layers that add to any `Statistics`, by the references of their averages."""
    token = _noticed.set({})
    try:
        yield _noticed.get()
    finally:
        _noticed.reset(token)


def averaged(module: tf.Module) -> dict[str, tf.Variable]:
    """Returns by path the moving averages of `module` that an average of its weights must average too.

    They belong to layers with `moments(sums) -> Values` and `moving`, which lists the averages that it has values for.
    """
    kept = {id(v) for part in (module, *module.submodules) if _has_moments(part) for v in part.moving}
    return {path: variable for path, variable in named_variables(module).items() if id(variable) in kept}


def _has_moments(part: Any) -> bool:
    return hasattr(type(part), "moments") and hasattr(type(part), "moving")


def refreshed(module: tf.Module) -> Values:
    """Returns new values of the derived state of `module` and the modules in it, from their current parameters."""
    values: Values = {}
    for part in (module, *module.submodules):
        refresh = getattr(part, "refresh", None)
        if refresh is not None:
            values |= refresh()
    return values


def commit(values: Values, apply_if: tf.Tensor | None = None) -> None:
    """Assigns each value to its variable; if `apply_if` (a scalar bool) is false, every variable keeps its bits."""
    for reference, value in values.items():
        variable = reference.deref()
        variable.assign(value if apply_if is None else one_of(apply_if, value, variable.read_value()))
