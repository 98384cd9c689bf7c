"""Means of the weights of several checkpoints: uniform and greedy soups.

Wortsman et al. (2022), "Model soups: averaging weights of multiple fine-tuned models improves accuracy without
increasing inference time".
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from core.checkpoint import Better
from core.errors import ConfigurationError

Values = Mapping[str, npt.NDArray[Any]]  # by the path of a task's variable


class Ingredient(NamedTuple):
    """The weights that evaluation reads from the checkpoint called `name`."""

    name: str
    values: Values


def mean(ingredients: Sequence[Ingredient]) -> Values:
    """Returns the means of floating variables, summed in float64; other variables are those of the last ingredient."""
    last = ingredients[-1].values
    for each in ingredients:
        check_alike(each, ingredients[-1])

    def of(path: str) -> npt.NDArray[Any]:
        if last[path].dtype.kind in "iub":
            return last[path]
        total = np.sum([each.values[path].astype(np.float64) for each in ingredients], axis=0)
        return np.asarray(total / len(ingredients)).astype(last[path].dtype)

    return {path: of(path) for path in last}


def greedy(
    ingredients: Sequence[Ingredient], measure: Callable[[Values], float], better: Better
) -> tuple[list[Ingredient], float]:
    """Returns the ingredients of the greedy soup and its metric, which `measure` returns for weights.

    The best ingredient comes first. Each further one is added if the metric of the mean doesn't get worse.
    """

    def finite(values: Values) -> float:
        found = measure(values)
        return found if math.isfinite(found) else math.inf * (-1.0 if better.way == "max" else 1.0)

    sign = -1.0 if better.way == "max" else 1.0
    ranked = sorted(((finite(each.values), i) for i, each in enumerate(ingredients)), key=lambda x: (sign * x[0], x[1]))
    (best, first), *others = ranked
    chosen = [ingredients[first]]
    for _, i in others:
        found = finite(mean([*chosen, ingredients[i]]))
        if not better.beats(best, found):
            chosen, best = [*chosen, ingredients[i]], found
    return chosen, best


def check_alike(one: Ingredient, other: Ingredient) -> None:
    """Raises a `ConfigurationError` if two checkpoints don't have the same variables."""
    shapes, others = ({path: (x.dtype, x.shape) for path, x in each.values.items()} for each in (one, other))
    apart = [path for path in {**shapes, **others} if shapes.get(path) != others.get(path)]
    if apart:
        raise ConfigurationError(
            f"`{one.name}` and `{other.name}` can't be averaged: `{apart[0]}` is in one of them only, or has another "
            "shape or dtype. Average checkpoints of equal tasks."
        )
