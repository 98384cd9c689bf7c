"""Weight decay: its rate, and the parameters that it applies to."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from core.optimizers.paths import matches, matching
from core.optimizers.rates import as_dtype, rate_at, times
from core.optimizers.transform import Rate, Schedule, Tensors, Variables


class Decay(NamedTuple):
    """Weight decay: adds a multiple of the parameters to gradients, directions or updates."""

    rate: float | Schedule
    exclude: Sequence[str] = ()  # patterns of paths
    excluded_by: str = "no_decay"  # the argument that gave them
    only: Sequence[str] | None = None  # every parameter by default

    def paths(self, params: Mapping[str, Any]) -> set[str]:
        """Returns the paths in `params` that match a pattern of `only` and none of `exclude`.

        Raises an error for a pattern without a match. Later calls may see only a part of the parameters.
        """
        chosen = set(params) if self.only is None else matching(self.only, params, argument="only")
        return chosen - matching(self.exclude, params, argument=self.excluded_by)

    def add(self, values: Tensors, params: Tensors, step: tf.Tensor, *, factor: Rate | None = None) -> Tensors:
        """Returns `values + factor * rate * params`, for parameters that decay; `factor` is 1 by default."""
        if not callable(self.rate) and self.rate == 0.0:
            return values
        rate, decaying = times(factor, rate_at(self.rate, step)), self._decaying(params)
        return {path: x + as_dtype(rate, x) * params[path] if path in decaying else x for path, x in values.items()}

    def shrink(self, params: Variables, step: tf.Tensor, *, factor: Rate) -> None:
        """Subtracts `factor * rate * parameter` from each decaying variable of `params`, in place."""
        if callable(self.rate) or self.rate != 0.0:
            rate = factor * rate_at(self.rate, step)
            for path in sorted(self._decaying(params)):
                params[path].assign_sub(as_dtype(rate, params[path]) * params[path])

    def _decaying(self, params: Mapping[str, Any]) -> set[str]:
        def any_of(patterns: Sequence[str], path: str) -> bool:
            return any(matches(pattern, path) for pattern in patterns)

        chosen = {path for path in params if self.only is None or any_of(self.only, path)}
        return {path for path in chosen if not any_of(self.exclude, path)}
