"""Optimizers, transforms and schedules: each has a row, its peer's numbers, and argument checks.

Their updates are also masked, resumed, given other dtypes, and compared between eager, graph and XLA; those with narrow
slots too.
"""

import functools
import inspect
from typing import Any

import gin
import numpy as np
import pytest
import tensorflow as tf

from core import optimizers
from core.optimizers import Optimizer, Schedule, Transform, chain, clip_by_value, ema, sgd

from .narrow_rows import NARROW
from .optimizer_battery import Row, Run, ScheduleRow, flat, largest_difference, schedule_difference, trajectory
from .optimizer_peers import SHAPES
from .optimizer_rows import OPTIMIZERS, ROWS
from .schedule_rows import SCHEDULES
from .transform_rows import TRANSFORMS

VOCABULARY = {"Optimizer", "Schedule", "Transform", "averaged", "chain", "last_rates", "named", "observer", "stateful"}
VOCABULARY |= {"stateless"}
SMALL = ("net/0/w", "net/0/b", "scale")  # paths of a smaller problem

every_part = pytest.mark.parametrize("part", sorted(set(optimizers.__all__) - VOCABULARY))
RULES = [*OPTIMIZERS, *TRANSFORMS]
every_rule = pytest.mark.parametrize("row", RULES, ids=lambda row: row.id)
every_row = pytest.mark.parametrize("row", [*RULES, *NARROW], ids=lambda row: row.id)


class Runs:
    """A row's runs that its tests share: in a graph, and with its pure function in eager calls."""

    def __init__(self, row: Row):
        self.row = row
        self.run = Run(row.make())

    @functools.cached_property
    def trajectory(self) -> list[tuple[Any, Any]]:
        return trajectory(self.run, self.row.steps)

    @property
    def trained(self) -> Run:
        """Returns the run after its trajectory, to continue from other values."""
        assert self.trajectory
        return self.run

    @functools.cached_property
    def pure(self) -> list[tuple[Any, Any]]:
        steps = self.row.steps if self.run.optimizer.transform.fused else 3
        return trajectory(Run(self.row.make(), fused=False, mode="eager"), steps)


runs_of = functools.cache(Runs)  # shared by the tests of a row
PARTS = list({row.part: row for row in RULES}.values())  # of each, the row with the most options
# One condition writes all slots, or none. So one of each kind: averages in a kernel and without, factors, matrices,
# curvature, two sets of weights, distances, counters, other optimizers inside, and narrow slots: int8 has scales too.
KINDS = {"sgd", "adam", "rmsprop", "adafactor", "muon", "soap", "psgd_kron", "shampoo", "sophia", "schedule_free_adamw"}
KINDS |= {"lookahead", "sam", "prodigy", "mechanic", "lbfgs", "rprop", "groups", "apply_if_finite", "reduce_on_plateau"}
WRITTEN = [row for row in PARTS if row.part in KINDS | {"mars", "ema", "polyak"}]
WRITTEN += [row for row in NARROW if row.id in {"adam: int8 slots", "muon: int8 slots", "lion: bfloat16 slots"}]
# test_optimizer_extremes.py compares XLA's numbers with the definitions of the first, test_optimizer_sizes.py with
# those of the second. The third only scale, select or add up the updates of rules that are compiled here.
DEFINED = {"adam", "adamw", "amsgrad", "nadam", "radam", "adamax", "lamb", "rmsprop", "adadelta"}
DEFINED |= {"clip_by_norm", "clip_by_global_norm", "adaptive_clip", "lars"}
DEFINED |= {"clip_by_value", "weight_decay", "frozen", "groups", "mup", "cautious", "optimistic", "polyak"}
COMPILED = [row for row in PARTS if row.part not in DEFINED]
COMPILED += [row for row in ROWS if row.id in {"adafactor", "sgd: bfloat16 slots", "adam: int8 slots"}]


def test_every_public_part_has_a_row() -> None:
    assert {row.part for row in ROWS} == set(optimizers.__all__) - VOCABULARY


def test_every_optimizer_with_slots_of_other_dtypes_has_rows() -> None:
    having = {name for name in optimizers.__all__ if "slots" in getattr(optimizers, name).__annotations__}
    assert {row.id for row in NARROW} == {
        f"{n}: {d} slots" for n in having - {"Optimizer"} for d in ("bfloat16", "int8")
    }


@every_row
def test_rule_agrees_with_its_peer_by_kernel_and_by_function(row: Row) -> None:
    slots = runs_of(row).run.optimizer.variables.values()
    assert (row in NARROW) == any(v.dtype in (tf.bfloat16, tf.int8) for v in slots)
    for mine in (runs_of(row).trajectory, runs_of(row).pure):
        assert largest_difference(row, mine) <= row.tolerance


@pytest.mark.parametrize("row", [row for row in RULES if not row.make().fused], ids=lambda row: row.id)
def test_eager_updates_agree_with_those_of_a_graph(row: Row) -> None:
    """Covers optimizers without a kernel: those with one are compared with the peer either way."""
    for (mine, _), (traced, _) in zip(runs_of(row).pure, runs_of(row).trajectory, strict=False):
        assert np.abs(flat(mine) - flat(traced)).max() <= 1e-6 * np.abs(flat(mine)).max()


@pytest.mark.long
@pytest.mark.parametrize("row", WRITTEN, ids=lambda row: row.id)
def test_masked_and_resumed_updates_are_the_plain_ones_bit_for_bit(row: Row) -> None:
    masked, plain = Run(row.make()), runs_of(row).trained
    masked.params["net/0/b"].assign([-0.0, 1e-40, 1.0, -1.0])  # a minus zero and a denormal, to begin with

    def skip(i: int) -> None:
        before = masked.bits()
        masked.update(i, apply_if=False, spoil=float("nan"))
        assert masked.bits() == before

    skip(0)
    masked.update(0, apply_if=True)
    skip(0)
    for path, variable in plain.variables.items():  # whose next update is then the second of the run
        variable.assign(masked.variables[path])
    for i in range(1, 4):
        plain.update(i)
        masked.update(i, apply_if=True)
        skip(i)
        assert masked.bits() == plain.bits()
    assert masked.call.experimental_get_tracing_count() == 1, "a change of the step, the gradients or the flag retraced"


@pytest.mark.parametrize("row", [row for row in OPTIMIZERS if row.make().fused], ids=lambda row: row.id)
def test_pure_rule_behind_a_kernel_is_masked_too(row: Row) -> None:
    run = Run(row.make(), fused=False, mode="eager")
    run.params["net/0/b"].assign([-0.0, 1e-40, 1.0, -1.0])
    before = run.bits()
    run.update(0, apply_if=False, spoil=float("nan"))
    assert run.bits() == before


@pytest.mark.long
@pytest.mark.parametrize("row", COMPILED, ids=lambda row: row.id)
def test_eager_updates_agree_with_those_of_xla(row: Row) -> None:
    eager, compiled = (Run(row.make(), fused=False, mode=mode, paths=SMALL) for mode in ("eager", "xla"))
    for i in range(3):
        eager.update(i)
        compiled.update(i)
    assert np.abs(compiled.numbers() - eager.numbers()).max() <= row.xla_tolerance * np.abs(eager.numbers()).max()


@pytest.mark.long
@every_row
def test_slots_keep_their_names_when_the_chain_grows(row: Row) -> None:
    alone, grown = runs_of(row).run, Run(chain(clip_by_value(1e9), row.make(), ema(0.5), sgd(0.0)))
    mine = {path: (v.shape, v.dtype) for path, v in alone.optimizer.variables.items()}
    theirs = {path: (v.shape, v.dtype) for path, v in grown.optimizer.variables.items()}
    assert mine.items() <= theirs.items()
    assert all(theirs[path][1] == tf.float32 for path in theirs if path.startswith("ema/"))


@pytest.mark.long
@pytest.mark.parametrize("row", PARTS, ids=lambda row: row.id)
def test_half_precision_parameters_have_wide_slots_and_double_ones_stay_double(row: Row) -> None:
    # Unlike eager calls, a graph accepts no Python number for another dtype; half precision is computed in float32.
    # Each rule takes one half precision: the two differ only in casts, which all rules share.
    half, bound = ((tf.bfloat16, 0.05), (tf.float16, 0.05 / 8.0))[PARTS.index(row) % 2]
    modes = {half: "eager", tf.float64: "graph"}
    runs = {dtype: Run(row.make(), dtype=dtype, mode=mode, paths=SMALL) for dtype, mode in modes.items()}
    for run in runs.values():
        run.update(0)
        run.update(1)
    double = runs[tf.float64].numbers()
    assert {v.dtype for v in runs[half].params.values()} == {half}
    assert half not in {v.dtype for v in runs[half].optimizer.variables.values()}
    assert np.abs(runs[half].numbers() - double).max() < bound * np.abs(double).max()
    assert {v.dtype for v in runs[tf.float64].params.values()} == {tf.float64}


@pytest.mark.parametrize("row", SCHEDULES, ids=lambda row: row.id)
def test_schedule_agrees_with_its_peer(row: ScheduleRow) -> None:
    assert schedule_difference(row) <= row.tolerance


# Arguments that a factory accepts and refuses, by name.
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
    "base_width": 8,
    "plain": ["b"],
    "rules": {"*": sgd(0.1)},
    "max_norm": 1.0,
    "max_value": 1.0,
    "initial_beta": 0.9,
    "final_beta": 0.99,
}
NEGATIVE = "learning_rate rate initial_rate peak_rate final_rate weight_decay epsilon eta gamma initial_sum cooldown "
NEGATIVE += "absolute_tolerance min_scale start max_consecutive_errors weight_power warmup_steps beta"
NEGATIVE += " alpha factor_share"
ZERO = "max_norm max_value clipping trust_coefficient slow_step_size steps decay_steps total_steps period power "
ZERO += "period_multiplier decay_rate sync_period patience accumulate root_every max_size newton_schulz_steps "
ZERO += "base_width min_factored_size clipping_threshold decay_exponent initial_divisor final_divisor"
ZERO += " d_0 initial_distance initial_scale num_betas memory_size initial_step_size min_step_size max_step_size"
ZERO += " estimate_every"
ZERO += " basis_every factor_rate"
FRACTION = "beta_1 beta_2 beta_3 initial_beta final_beta momentum rho decay"
BAD: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(NEGATIVE.split(), (-1,)),
    **dict.fromkeys(ZERO.split(), (0, -1)),
    **dict.fromkeys(FRACTION.split(), (-0.1, 1.0)),
    "warmup_fraction": (0.0, 1.0),
    "slots": ("int4", "float16", tf.int32, 8),
    **dict.fromkeys(("factor", "eta_minus"), (0.0, 1.0)),
    "eta_plus": (0.0, 1.0),
    "polynomials": ("quintic", 5),
    "estimator": ("bartlett", 5),
    "profile": ("linear", 5),
    "std": (-1, 0, 1),  # of another profile
    "neuron_beta": (-0.1, 1.0),
    "relative_tolerance": (-0.1, 1.1),
    "rates": ([0.1, -0.1],),
    "boundaries": ([], [0], [-3], [3, 3]),
    "schedules": (),  # as many as the boundaries
    "rules": ({},),
}
# The epsilon of these; some have none.
ABOVE_ZERO = "adadelta adafactor adagrad adaptive_clip dadapt_adamw dog mechanic muon sophia rmsprop shampoo"
ONLY_BAD = {
    **{(part, "epsilon"): (0, -1) for part in ABOVE_ZERO.split()},
    ("sam", "rho"): (0.0,),
    ("radam", "beta_2"): (0.0, 0.5, 1.0),
    ("schedule_free_adamw", "beta_1"): (0.0, 1.0),
}
ANY = {
    "seed",
    "nesterov",
    "centred",
    "debias",
    "staircase",
    "scale_by_parameter",
    "kernels",
    "sharded",
}  # the type has no wrong value


def bad_values(part: str, name: str) -> tuple[Any, ...]:
    return ONLY_BAD.get((part, name), BAD.get(name, ()))


def given(part: str) -> dict[str, Any]:
    parameters = inspect.signature(getattr(optimizers, part)).parameters
    return {name: GOOD[name] for name, p in parameters.items() if p.default is inspect.Parameter.empty}


@every_part
def test_factory_is_configurable_annotated_and_documented(part: str) -> None:
    factory = getattr(optimizers, part)
    assert gin.get_configurable(f"{factory.__module__}.{part}") is factory
    signature = inspect.signature(factory)
    assert signature.return_annotation in (Transform, Schedule)
    assert all(p.annotation is not inspect.Parameter.empty for p in signature.parameters.values())
    assert factory.__doc__
    factory(**given(part))


@every_part
def test_wrong_argument_is_named(part: str) -> None:
    factory = getattr(optimizers, part)
    for name, parameter in inspect.signature(factory).parameters.items():
        kind = str(parameter.annotation)
        if ("Transform" in kind and name != "rules") or "Sequence[str]" in kind:
            continue
        assert name in BAD or name in ANY, f"give `{name}` a wrong value in BAD"
        for value in bad_values(part, name):
            with pytest.raises(ValueError, match=f"`{name}"):
                factory(**{**given(part), name: value})


def test_warm_up_that_fills_the_total_is_refused() -> None:
    with pytest.raises(ValueError, match="`total_steps` is 10, but `warmup_steps` is 10"):
        optimizers.warmup_cosine(0.1, warmup_steps=10, total_steps=10)
    with pytest.raises(ValueError, match="`total_steps` is 10, but `warmup_steps` and `decay_steps` make 11"):
        optimizers.warmup_stable_decay(0.1, warmup_steps=5, decay_steps=6, total_steps=10)


@pytest.mark.parametrize(
    ("boundaries", "says"),
    [
        ([10], "has 1 entries for 3 `rates`; give one less than `rates`"),
        ([10, 10], r"is \[10, 10\]; give update counts above zero in ascending order"),
        ([20, 10], r"is \[20, 10\]; give update counts"),
    ],
)
def test_boundaries_in_another_order_or_number_are_refused(boundaries: list[int], says: str) -> None:
    with pytest.raises(ValueError, match=f"`boundaries` {says}"):
        optimizers.piecewise_constant([0.3, 0.2, 0.1], boundaries=boundaries)


@pytest.mark.parametrize(
    "make",
    [
        functools.partial(optimizers.adamw, 0.1, no_decay=["net/0/bias"]),
        functools.partial(optimizers.prodigy, no_decay=["net/0/bias"]),
        functools.partial(optimizers.dadapt_adamw, no_decay=["net/0/bias"]),
        functools.partial(optimizers.adan, 0.1, no_decay=["net/0/bias"]),
        functools.partial(optimizers.cautious_decay, sgd(0.1), no_decay=["net/0/bias"]),
        functools.partial(optimizers.lamb, 0.1, no_decay=["net/0/bias"]),
        functools.partial(optimizers.lion, 0.1, no_decay=["net/0/bias"]),
        functools.partial(optimizers.lars, 0.1, plain=["net/0/bias"]),
        functools.partial(optimizers.mup, sgd(0.1), base_width=8, plain=["net/0/bias"]),
        functools.partial(optimizers.muon, 0.1, other_for=["net/0/bias"]),
        functools.partial(optimizers.weight_decay, 0.1, only=["net/0/bias"]),
        functools.partial(optimizers.weight_decay, 0.1, exclude=["net/0/bias"]),
        functools.partial(optimizers.groups, {"net/0/bias": sgd(0.1)}, otherwise=sgd(0.1)),
    ],
)
def test_pattern_without_a_match_is_named_with_the_paths_and_a_near_one(make: functools.partial[Transform]) -> None:
    params = {path: tf.Variable(tf.zeros(shape)) for path, shape in SHAPES.items()}
    with pytest.raises(ValueError, match=r"'net/0/bias'.*Did you mean `net/0/b`\?.*net/0/b, net/0/w, net/1/kernel"):
        Optimizer(make(), params)
