"""Schedules for all numbers of a rule: betas, momentum, epsilon, thresholds.

>>> from core.optimizers import adamw, linear
>>> rule = adamw(1e-3, beta_1=linear(0.85, 0.95, steps=1000))
"""

import functools
import inspect
from collections.abc import Callable
from typing import Any, ParamSpec

import tensorflow as tf

from core.arguments import unchecked_tensors
from core.optimizers.chain import chain
from core.optimizers.rates import rate_at
from core.optimizers.transform import Curvature, Schedule, State, Tensors, Transform

P = ParamSpec("P")


def schedulable(make: Callable[P, Transform]) -> Callable[P, Transform]:
    """Lets each argument of `make` that is declared as a number be a schedule, too.

    The rule is made anew in each update, with the numbers at its step; bias corrections take them for those of all
    earlier steps. It then uses none of TensorFlow's kernels. `init` gets the numbers at step 0.
    """
    signature = inspect.signature(make)
    numbers = [name for name, p in signature.parameters.items() if p.annotation is float]

    @functools.wraps(make)
    def made(*args: P.args, **kwargs: P.kwargs) -> Transform:
        given = signature.bind(*args, **kwargs).arguments
        schedules = {name: given[name] for name in numbers if callable(given.get(name))}
        return _made_anew(make, given, schedules) if schedules else make(*args, **kwargs)

    vars(made)["__signature__"] = signature  # gin reads the names of arguments from it
    # The check of a gin file's values reads these.
    made.__annotations__ = {**make.__annotations__, **dict.fromkeys(numbers, float | Schedule)}
    return made


def _made_anew(make: Callable[..., Transform], given: dict[str, Any], schedules: dict[str, Any]) -> Transform:
    def at(step: tf.Tensor) -> Transform:
        values = {name: rate_at(schedule, step) for name, schedule in schedules.items()}
        with unchecked_tensors():
            return make(**given | values)

    base = at(tf.zeros([], tf.int64))
    if base.parts:
        return chain(*(_anew(part, functools.partial(_part, at, i)) for i, part in enumerate(base.parts)))
    return _anew(base, at)


def _part(at: Callable[[tf.Tensor], Transform], i: int, step: tf.Tensor) -> Transform:
    return at(step).parts[i]


def _anew(base: Transform, at: Callable[[tf.Tensor], Transform]) -> Transform:
    """Returns `base` with each function replaced by that of the rule `at` the step."""

    def init(params: Tensors) -> State:
        for path, p in params.items():
            if p.dtype == tf.float64:
                raise ValueError(
                    f"`{base.name}` has a schedule of a number other than its rates, whose values are float32, but "
                    f"`{path}` is float64: give the number itself."
                )
        return at(tf.zeros([], tf.int64)).init(params)

    def update(
        gradients: Tensors, state: State, params: Tensors, *, step: tf.Tensor, value: tf.Tensor | None = None
    ) -> tuple[Tensors, State]:
        return at(step).update(gradients, state, params, step=step, value=value)

    def of_state(name: str) -> Any:
        return lambda state, params, step: getattr(at(step), name)(state, params, step)

    def rates(before: Any, state: State, params: Any, *, step: tf.Tensor) -> Any:
        made = at(step).rates
        assert made
        return made(before, state, params, step=step)

    def share(path: str, params: Any, step: tf.Tensor) -> Any:
        shares = at(step).shares
        assert shares
        return shares(params)[path](step)

    def shares(params: Any) -> Any:
        assert base.shares
        return {path: functools.partial(share, path, params) for path in base.shares(params)}

    def take(estimate: Tensors, state: State, step: tf.Tensor) -> State:
        curvature = at(step).curvature
        assert curvature
        return curvature.take(estimate, state, step)

    return base._replace(
        init=init,
        update=update,
        fused=None,
        shadow=base.shadow and of_state("shadow"),
        observe=base.observe and of_state("observe"),
        rates=base.rates and rates,
        shares=base.shares and shares,
        curvature=base.curvature and Curvature(base.curvature.every, take, base.curvature.sampled),
    )
