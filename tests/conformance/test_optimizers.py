"""Every optimizer, transform and schedule has a row, its peer's numbers, and arguments that are checked."""

import functools
import inspect
from typing import Any

import gin
import pytest
import tensorflow as tf

from core import optimizers
from core.optimizers import Optimizer, Schedule, Transform, chain, sgd

from .optimizer_battery import Row, ScheduleRow, largest_difference
from .optimizer_peers import SHAPES
from .optimizer_rows import OPTIMIZERS, ROWS
from .transform_rows import TRANSFORMS

VOCABULARY = {"Optimizer", "Schedule", "Transform", "chain", "last_rates", "named", "observer", "stateful", "stateless"}
every_part = pytest.mark.parametrize("part", sorted(set(optimizers.__all__) - VOCABULARY))
with_kernel = [row for row in (*OPTIMIZERS, *TRANSFORMS) if chain(row.make()).fused]


def test_every_public_part_has_a_row() -> None:
    assert {row.part for row in ROWS} == set(optimizers.__all__) - VOCABULARY


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.id)
def test_the_numbers_are_the_peers(row: Row | ScheduleRow) -> None:
    assert largest_difference(row) <= row.tolerance


@pytest.mark.parametrize("row", with_kernel, ids=lambda row: row.id)
def test_the_pure_rule_behind_a_kernel_has_the_peers_numbers_too(row: Row) -> None:
    assert largest_difference(row, fused=False) <= row.tolerance


# What a factory may be given, and what it refuses, by the name of the argument.
GOOD: dict[str, Any] = {
    "learning_rate": 0.1,
    "rate": 0.1,
    "initial_rate": 0.1,
    "final_rate": 0.01,
    "peak_rate": 0.1,
    "rates": [0.1, 0.2],
    "boundaries": [3],
    "schedules": [optimizers.constant(0.1), optimizers.constant(0.2)],
    "steps": 10,
    "total_steps": 10,
    "warmup_steps": 3,
    "decay_steps": 3,
    "decay_rate": 0.5,
    "period": 5,
    "power": 2.0,
    "inner": sgd(0.1),
    "rules": {"*": sgd(0.1)},
    "max_norm": 1.0,
    "max_value": 1.0,
}
NEGATIVE = "learning_rate rate initial_rate peak_rate final_rate weight_decay epsilon eta gamma initial_sum cooldown "
NEGATIVE += "absolute_tolerance min_scale start max_consecutive_errors weight_power warmup_steps"
ZERO = "max_norm max_value clipping trust_coefficient slow_step_size steps decay_steps total_steps period power "
ZERO += "period_multiplier decay_rate sync_period patience accumulate root_every max_size newton_schulz_steps "
ZERO += "min_factored_size clipping_threshold decay_exponent initial_divisor final_divisor"
BAD: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(NEGATIVE.split(), (-1,)),
    **dict.fromkeys(ZERO.split(), (0, -1)),
    **dict.fromkeys(("beta_1", "beta_2", "momentum", "rho", "decay"), (-0.1, 1.0)),
    "warmup_fraction": (0.0, 1.0),
    "factor": (0.0, 1.0),
    "relative_tolerance": (-0.1, 1.1),
    "rates": ([0.1, -0.1],),
    "boundaries": ([], [0], [-3], [3, 3]),
    "schedules": (),  # their number is that of the boundaries
    "rules": ({},),
}
ONLY_BAD = {("sam", "rho"): (0.0,), ("radam", "beta_2"): (0.5, 1.0), ("schedule_free_adamw", "beta_1"): (0.0, 1.0)}
ANY = {"seed", "nesterov", "centred", "debias", "staircase", "scale_by_parameter"}  # no value of the type is wrong


def given(part: str) -> dict[str, Any]:
    parameters = inspect.signature(getattr(optimizers, part)).parameters
    return {name: GOOD[name] for name, p in parameters.items() if p.default is inspect.Parameter.empty}


@every_part
def test_a_factory_is_configurable_and_says_what_it_takes_and_makes(part: str) -> None:
    factory = getattr(optimizers, part)
    assert gin.get_configurable(f"{factory.__module__}.{part}") is factory
    signature = inspect.signature(factory)
    assert signature.return_annotation in (Transform, Schedule)
    assert all(p.annotation is not inspect.Parameter.empty for p in signature.parameters.values())
    assert factory.__doc__
    factory(**given(part))


@every_part
def test_a_wrong_argument_is_named(part: str) -> None:
    factory = getattr(optimizers, part)
    for name, parameter in inspect.signature(factory).parameters.items():
        if ("Transform" in str(parameter.annotation) and name != "rules") or "Sequence[str]" in str(
            parameter.annotation
        ):
            continue
        assert name in BAD or name in ANY, f"give `{name}` a wrong value in BAD"
        for value in ONLY_BAD.get((part, name), BAD.get(name, ())):
            with pytest.raises(ValueError, match=f"`{name}"):
                factory(**{**given(part), name: value})


def test_a_warm_up_that_fills_the_total_is_refused() -> None:
    with pytest.raises(ValueError, match="`total_steps` is 10, but `warmup_steps` is 10"):
        optimizers.warmup_cosine(0.1, warmup_steps=10, total_steps=10)
    with pytest.raises(ValueError, match="`total_steps` is 10, but `warmup_steps` and `decay_steps` make 11"):
        optimizers.warmup_stable_decay(0.1, warmup_steps=5, decay_steps=6, total_steps=10)


@pytest.mark.parametrize(
    "make",
    [
        functools.partial(optimizers.adamw, 0.1, no_decay=["net/0/bias"]),
        functools.partial(optimizers.lamb, 0.1, no_decay=["net/0/bias"]),
        functools.partial(optimizers.lion, 0.1, no_decay=["net/0/bias"]),
        functools.partial(optimizers.lars, 0.1, plain=["net/0/bias"]),
        functools.partial(optimizers.muon, 0.1, other_for=["net/0/bias"]),
        functools.partial(optimizers.weight_decay, 0.1, only=["net/0/bias"]),
        functools.partial(optimizers.weight_decay, 0.1, exclude=["net/0/bias"]),
        functools.partial(optimizers.groups, {"net/0/bias": sgd(0.1)}, otherwise=sgd(0.1)),
    ],
)
def test_a_pattern_without_a_match_is_named_with_the_paths_and_a_near_one(make: functools.partial[Transform]) -> None:
    params = {path: tf.Variable(tf.zeros(shape)) for path, shape in SHAPES.items()}
    with pytest.raises(ValueError, match=r"'net/0/bias'.*Did you mean `net/0/b`\?.*net/0/b, net/0/w, net/1/kernel"):
        Optimizer(make(), params)
