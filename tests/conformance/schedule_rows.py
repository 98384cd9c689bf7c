"""The table of schedules: one row each, with the peer it is checked against."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import optax

from core import optimizers as ours

from .optimizer_battery import ScheduleRow
from .optimizer_peers import sgdr


def half_life_peer(first: float, last: float, steps: int) -> Callable[[Any], Any]:
    """Returns the paper's β3 of update `count`."""
    a, b = jnp.log(first), jnp.log(last)

    def at(count: Any) -> Any:
        share = jnp.minimum(count / steps, 1.0)
        return jnp.exp(a * b / ((1 - share) * b + share * a))

    return at


SGDR = "Loshchilov and Hutter (2017)"
SCHEDULES = (
    ScheduleRow("constant", lambda: ours.constant(0.1), lambda: optax.constant_schedule(0.1), "Optax"),
    ScheduleRow(
        "linear", lambda: ours.linear(0.1, 0.01, steps=40), lambda: optax.linear_schedule(0.1, 0.01, 40), "Optax"
    ),
    ScheduleRow("polynomial", lambda: ours.polynomial(0.1, 0.01, steps=40, power=2.5),
        lambda: optax.polynomial_schedule(0.1, 0.01, 2.5, 40), "Optax"),
    ScheduleRow("rising_power", lambda: ours.rising_power(0.1, 0.01, steps=40, power=3.0),
        lambda: lambda count: 0.1 - 0.09 * jnp.minimum(count / 40, 1.0) ** 3, "JAX, written out"),
    ScheduleRow("cosine", lambda: ours.cosine(0.1, 0.01, steps=40), lambda: optax.cosine_decay_schedule(0.1, 40, 0.1),
        "Optax", SGDR),
    ScheduleRow("warmup_cosine",
        lambda: ours.warmup_cosine(0.1, warmup_steps=7, total_steps=40, initial_rate=0.01, final_rate=0.001),
        lambda: optax.warmup_cosine_decay_schedule(0.01, 0.1, 7, 40, 0.001), "Optax", SGDR),
    ScheduleRow("cosine_restarts", lambda: ours.cosine_restarts(0.1, 0.01, period=5, period_multiplier=2),
        lambda: sgdr([5, 10, 20, 40]), "Optax", SGDR),
    ScheduleRow("cosine_restarts", lambda: ours.cosine_restarts(0.1, 0.01, period=9), lambda: sgdr([9] * 6), "Optax",
        SGDR, case="equal periods"),
    ScheduleRow("exponential", lambda: ours.exponential(0.1, decay_rate=0.7, steps=8, final_rate=0.02),
        lambda: optax.exponential_decay(0.1, 8, 0.7, end_value=0.02), "Optax"),
    ScheduleRow("exponential", lambda: ours.exponential(0.1, decay_rate=0.7, steps=8, staircase=True),
        lambda: optax.exponential_decay(0.1, 8, 0.7, staircase=True), "Optax", case="staircase"),
    ScheduleRow("inverse_square_root", lambda: ours.inverse_square_root(0.1, warmup_steps=10),
        lambda: lambda count: 0.1 * jnp.minimum(count / 10, (10 / jnp.maximum(count, 1)) ** 0.5), "JAX, written out",
        "Vaswani et al. (2017)"),
    ScheduleRow("half_life", lambda: ours.half_life(0.9, 0.999, steps=40), lambda: half_life_peer(0.9, 0.999, 40),
        "JAX, written out", "Pagliardini et al. (2024)"),
    ScheduleRow("piecewise_constant", lambda: ours.piecewise_constant([0.1, 0.05, 0.01], boundaries=[10, 30]),
        lambda: optax.piecewise_constant_schedule(0.1, {10: 0.5, 30: 0.2}), "Optax"),
    ScheduleRow("one_cycle", lambda: ours.one_cycle(0.1, total_steps=40),
        lambda: optax.cosine_onecycle_schedule(40, 0.1), "Optax", "Smith and Topin (2018)",
        reason="Peak and end come after so many updates, as in Optax; in PyTorch one update earlier."),
    ScheduleRow(
        "warmup_stable_decay",
        lambda: ours.warmup_stable_decay(0.1, warmup_steps=8, decay_steps=12, total_steps=45, final_rate=0.001),
        lambda: optax.join_schedules(
            [optax.linear_schedule(0.0, 0.1, 8), optax.constant_schedule(0.1), optax.linear_schedule(0.1, 0.001, 12)],
            [8, 33],
        ),
        "Optax",
        "Hu et al. (2024)",
    ),
    ScheduleRow("join", lambda: ours.join([ours.linear(0.0, 0.1, steps=5), ours.cosine(0.1, steps=30)], boundaries=[5]),
        lambda: optax.join_schedules([optax.linear_schedule(0.0, 0.1, 5), optax.cosine_decay_schedule(0.1, 30)], [5]),
        "Optax"),
)  # fmt: skip
