"""Learning-rate schedules: pure functions from the number of applied updates (zero for the first) to a rate.

>>> import tensorflow as tf
>>> schedule = warmup_cosine(0.1, warmup_steps=10, total_steps=100)
>>> [round(float(schedule(tf.constant(step))), 3) for step in (0, 5, 10, 55, 100, 1000)]
[0.0, 0.05, 0.1, 0.05, 0.0, 0.0]
"""

import math
from collections.abc import Sequence

import gin
import tensorflow as tf

from core.arguments import check_count, check_fraction, check_not_negative, check_positive, check_size
from core.optimizers.transform import Schedule


def _periods(step: tf.Tensor, length: int | tf.Tensor) -> tf.Tensor:
    """Returns `step / length` in float32, divided in float64: in float32, graphs compute 41 / 41 as 41 · (1/41) ≠ 1."""
    return tf.cast(tf.cast(step, tf.float64) / tf.cast(length, tf.float64), tf.float32)


def _progress(step: tf.Tensor, steps: int, start: int = 0) -> tf.Tensor:
    """Returns `(step - start) / steps`, clipped to [0, 1]."""
    return _periods(tf.clip_by_value(tf.cast(step, tf.int64) - start, 0, steps), steps)


def _between(first: float, last: float, share: tf.Tensor) -> tf.Tensor:
    """Interpolates linearly: `first` for `share` 0, `last` for `share` 1, both exact."""
    return first * (1.0 - share) + last * share


def _half_cosine(initial_rate: float, final_rate: float, progress: tf.Tensor) -> tf.Tensor:
    return _between(final_rate, initial_rate, 0.5 + 0.5 * tf.cos(math.pi * progress))


@gin.configurable
def constant(rate: float) -> Schedule:
    """Always returns `rate`. (In gin, write `@schedules.constant()`: gin has another `constant`.)"""
    check_not_negative(rate=rate)
    return lambda step: tf.constant(rate, tf.float32)


@gin.configurable
def linear(initial_rate: float, final_rate: float, *, steps: int) -> Schedule:
    """Changes linearly from `initial_rate` to `final_rate`, which is reached after `steps` updates."""
    return polynomial(initial_rate, final_rate, steps=steps, power=1.0)


@gin.configurable
def polynomial(initial_rate: float, final_rate: float = 0.0, *, steps: int, power: float) -> Schedule:
    """Decays from `initial_rate` to `final_rate` with the factor (1 - step/steps)^power."""
    check_not_negative(initial_rate=initial_rate, final_rate=final_rate)
    check_size(steps=steps)
    check_positive(power=power)

    def schedule(step: tf.Tensor) -> tf.Tensor:
        # Counted from the end: near it, 1 - step/steps would lose digits, which a root magnifies.
        remaining = _progress(steps - tf.cast(step, tf.int64), steps)
        return _between(final_rate, initial_rate, tf.pow(remaining, float(power)))

    return schedule


@gin.configurable
def rising_power(initial_rate: float, final_rate: float, *, steps: int, power: float) -> Schedule:
    """Changes from `initial_rate` to `final_rate` by the share (step/steps)^power, slowly at first for powers above 1.

    For example a step size of `lookahead` that falls towards the end.
    """
    check_not_negative(initial_rate=initial_rate, final_rate=final_rate)
    check_size(steps=steps)
    check_positive(power=power)
    return lambda step: _between(initial_rate, final_rate, tf.pow(_progress(step, steps), float(power)))


@gin.configurable
def cosine(initial_rate: float, final_rate: float = 0.0, *, steps: int) -> Schedule:
    """Follows half a cosine: Loshchilov and Hutter (2017), "SGDR: stochastic gradient descent with warm restarts"."""
    check_not_negative(initial_rate=initial_rate, final_rate=final_rate)
    check_size(steps=steps)
    return lambda step: _half_cosine(initial_rate, final_rate, _progress(step, steps))


@gin.configurable
def warmup_cosine(
    peak_rate: float, *, warmup_steps: int, total_steps: int, initial_rate: float = 0.0, final_rate: float = 0.0
) -> Schedule:
    """Rises linearly from `initial_rate` to `peak_rate`, then falls as half a cosine to `final_rate` at `total_steps`.

    The first update uses `initial_rate`; with the default of zero, it changes no parameter.
    """
    check_not_negative(peak_rate=peak_rate, initial_rate=initial_rate, final_rate=final_rate)
    check_count(warmup_steps=warmup_steps)
    check_size(total_steps=total_steps)
    if total_steps <= warmup_steps:
        raise ValueError(
            f"`total_steps` is {total_steps}, but `warmup_steps` is {warmup_steps}; the warm-up is part of the total."
        )

    def schedule(step: tf.Tensor) -> tf.Tensor:
        down = _half_cosine(peak_rate, final_rate, _progress(step, total_steps - warmup_steps, warmup_steps))
        return _after_warmup(step, warmup_steps, initial_rate, peak_rate, down)

    return schedule


@gin.configurable
def cosine_restarts(
    initial_rate: float, final_rate: float = 0.0, *, period: int, period_multiplier: int = 1
) -> Schedule:
    """Repeats half cosines (SGDR's warm restarts), each `period_multiplier` times as long as the previous one."""
    check_not_negative(initial_rate=initial_rate, final_rate=final_rate)
    check_size(period=period, period_multiplier=period_multiplier)
    starts = [0]
    while period_multiplier > 1 and starts[-1] < 1 << 40:
        starts.append(starts[-1] * period_multiplier + period)

    def schedule(step: tf.Tensor) -> tf.Tensor:
        step = tf.cast(step, tf.int64)
        if period_multiplier == 1:
            return _half_cosine(initial_rate, final_rate, _progress(step % period, period))
        all_starts = tf.constant(starts, tf.int64)
        start = tf.reduce_max(tf.where(all_starts <= step, all_starts, tf.zeros_like(all_starts)))
        length = start * (period_multiplier - 1) + period  # the next term of a geometric series, from its sum
        return _half_cosine(initial_rate, final_rate, _periods(step - start, length))

    return schedule


@gin.configurable
def exponential(
    initial_rate: float, *, decay_rate: float, steps: int, staircase: bool = False, final_rate: float = 0.0
) -> Schedule:
    """Multiplies `initial_rate` by `decay_rate` per `steps` updates, and never goes below `final_rate`."""
    check_not_negative(initial_rate=initial_rate, final_rate=final_rate)
    check_positive(decay_rate=decay_rate)
    check_size(steps=steps)

    def schedule(step: tf.Tensor) -> tf.Tensor:
        step = tf.cast(step, tf.int64)
        periods = tf.cast(step // steps, tf.float64) if staircase else tf.cast(step, tf.float64) / steps
        # In float32, 1 - 0.99999 is off by 1e-3 of itself, and the logarithms of its powers would be, too.
        power = tf.cast(tf.exp(periods * math.log(decay_rate)), tf.float32)
        return tf.maximum(initial_rate * power, final_rate)

    return schedule


@gin.configurable
def inverse_square_root(peak_rate: float, *, warmup_steps: int) -> Schedule:
    """Follows Vaswani et al. (2017), "Attention is all you need": a line up, then peak_rate √(warmup_steps / step)."""
    check_not_negative(peak_rate=peak_rate)
    check_size(warmup_steps=warmup_steps)

    def schedule(step: tf.Tensor) -> tf.Tensor:
        periods = _periods(step, warmup_steps)
        return peak_rate * tf.minimum(periods, tf.math.rsqrt(tf.maximum(periods, 1.0)))

    return schedule


@gin.configurable
def piecewise_constant(rates: Sequence[float], *, boundaries: Sequence[int]) -> Schedule:
    """Returns `rates[0]` until update `boundaries[0]`, then `rates[1]`, and so on."""
    _check_boundaries(boundaries, "rates", len(rates))
    check_not_negative(**{f"rates[{i}]": rate for i, rate in enumerate(rates)})

    def schedule(step: tf.Tensor) -> tf.Tensor:
        passed = tf.cast(step, tf.int64) >= tf.constant(list(boundaries), tf.int64)
        return tf.gather(tf.constant(list(rates), tf.float32), tf.reduce_sum(tf.cast(passed, tf.int32)))

    return schedule


@gin.configurable
def one_cycle(
    peak_rate: float,
    *,
    total_steps: int,
    warmup_fraction: float = 0.3,
    initial_divisor: float = 25.0,
    final_divisor: float = 1e4,
) -> Schedule:
    """Follows Smith and Topin (2018), "Super-convergence": half a cosine up, then half a cosine down.

    As in Optax, the peak comes after ⌊warmup_fraction · total_steps⌋ updates. After `total_steps` updates, the rate is
    peak / initial_divisor / final_divisor. In PyTorch, peak and end are one update earlier. The paper uses lines in
    place of cosines, and also cycles the momentum; this schedule doesn't.
    """
    check_not_negative(peak_rate=peak_rate)
    check_size(total_steps=total_steps)
    check_positive(initial_divisor=initial_divisor, final_divisor=final_divisor)
    check_fraction(warmup_fraction=warmup_fraction)
    warmup_steps = int(round(warmup_fraction * total_steps, 6))  # 0.29 * 100 is 28.999999999999996
    if not 0 < warmup_steps < total_steps:
        raise ValueError(
            f"`warmup_fraction` is {warmup_fraction!r}; of {total_steps} steps that leaves none for the way up or down."
        )
    initial_rate = peak_rate / initial_divisor
    final_rate = initial_rate / final_divisor

    def schedule(step: tf.Tensor) -> tf.Tensor:
        up = _half_cosine(initial_rate, peak_rate, _progress(step, warmup_steps))
        down = _half_cosine(peak_rate, final_rate, _progress(step, total_steps - warmup_steps, warmup_steps))
        return tf.where(step < warmup_steps, up, down)

    return schedule


@gin.configurable
def warmup_stable_decay(
    peak_rate: float,
    *,
    warmup_steps: int,
    decay_steps: int,
    total_steps: int,
    initial_rate: float = 0.0,
    final_rate: float = 0.0,
) -> Schedule:
    """Follows Hu et al. (2024), "MiniCPM": a line up, a constant peak, then a line down over `decay_steps`."""
    check_not_negative(peak_rate=peak_rate, initial_rate=initial_rate, final_rate=final_rate)
    check_count(warmup_steps=warmup_steps)
    check_size(decay_steps=decay_steps, total_steps=total_steps)
    if warmup_steps + decay_steps > total_steps:
        raise ValueError(
            f"`total_steps` is {total_steps}, but `warmup_steps` and `decay_steps` make {warmup_steps + decay_steps}; "
            "both are part of the total."
        )

    def schedule(step: tf.Tensor) -> tf.Tensor:
        down = _between(peak_rate, final_rate, _progress(step, decay_steps, total_steps - decay_steps))
        return _after_warmup(step, warmup_steps, initial_rate, peak_rate, down)

    return schedule


@gin.configurable
def half_life(initial_beta: float, final_beta: float, *, steps: int) -> Schedule:
    """Follows Pagliardini et al. (2024): a β whose half-life log ½ / log β changes linearly over `steps` updates.

    For the decay of an average, such as `ademamix.beta_3`. In float64: in float32, 1 - β loses digits.
    """
    check_fraction(initial_beta=initial_beta, final_beta=final_beta)
    check_size(steps=steps)
    first, last = (math.log(0.5) / math.log(beta) if beta else 0.0 for beta in (initial_beta, final_beta))

    def schedule(step: tf.Tensor) -> tf.Tensor:
        share = tf.cast(_progress(step, steps), tf.float64)
        return tf.exp(math.log(0.5) / _between(first, last, share))

    return schedule


@gin.configurable
def join(schedules: Sequence[Schedule], *, boundaries: Sequence[int]) -> Schedule:
    """Chains schedules, e.g. `join([linear(...), cosine(...)], boundaries=[100])`; each counts from its boundary."""
    _check_boundaries(boundaries, "schedules", len(schedules))

    def schedule(step: tf.Tensor) -> tf.Tensor:
        rate = schedules[0](step)
        for boundary, following in zip(boundaries, schedules[1:], strict=True):
            rate = tf.where(step < boundary, rate, following(step - boundary))
        return rate

    return schedule


def _after_warmup(
    step: tf.Tensor, warmup_steps: int, initial_rate: float, peak_rate: float, then: tf.Tensor
) -> tf.Tensor:
    if warmup_steps == 0:
        return then
    return tf.where(step < warmup_steps, _between(initial_rate, peak_rate, _progress(step, warmup_steps)), then)


def _check_boundaries(boundaries: Sequence[int], of: str, count: int) -> None:
    if len(boundaries) != count - 1:
        raise ValueError(f"`boundaries` has {len(boundaries)} entries for {count} `{of}`; give one less than `{of}`.")
    check_size(**{f"boundaries[{i}]": boundary for i, boundary in enumerate(boundaries)})
    if any(low >= high for low, high in zip([0, *boundaries], boundaries, strict=False)):
        raise ValueError(f"`boundaries` is {list(boundaries)!r}; give update counts above zero in ascending order.")
