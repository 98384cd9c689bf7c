"""Power-function averages: their weights on past updates, and any width from kept snapshots, in float64.

Karras et al. (2024), "Analyzing and improving the training dynamics of diffusion models". The average at update t
weighs update τ in proportion to τ ** γ, so its width grows with t. `std` is the standard deviation of these weights, as
a share of t.
"""

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from core.arguments import check_positive

Numbers = npt.NDArray[np.float64]
WIDEST = 12.0**-0.5  # of γ = 0: all updates weigh the same


def gamma_of(std: float) -> float:
    """Returns γ for `std` = √(γ + 1) / ((γ + 2) √(γ + 3)), the positive root of a cubic (the paper's Algorithm 2)."""
    check_positive(std=std)
    if std >= WIDEST:
        raise ValueError(f"`std` is {std}; it is the width of an average, as a share of the run: below {WIDEST:.4f}.")
    root = np.roots([1.0, 7.0, 16.0 - std**-2, 12.0 - std**-2]).real.max()
    return float(root)


def inner_products(times_a: Any, gammas_a: Any, times_b: Any, gammas_b: Any) -> Numbers:
    """Returns ⟨p_a, p_b⟩ [a, b] of the profiles p(τ) = (γ + 1) τ ** γ / t ** (γ + 1) on [0, t] (Algorithm 3)."""
    t_a, g_a = (np.asarray(x, np.float64)[:, np.newaxis] for x in (times_a, gammas_a))
    t_b, g_b = (np.asarray(x, np.float64)[np.newaxis] for x in (times_b, gammas_b))
    power = np.where(t_a < t_b, g_b, -g_a)
    products: Numbers = (g_a + 1.0) * (g_b + 1.0) * (t_a / t_b) ** power / ((g_a + g_b + 1.0) * np.maximum(t_a, t_b))
    return products


def combination(times: Any, stds: Any, *, time: float, std: float) -> tuple[Numbers, float]:
    """Returns weights [n] by which snapshots at `times` [n] sum to the average of width `std` at `time`.

    The weights minimise ‖Σ wᵢ pᵢ − p‖ over profiles. Also returns that distance as a share of ‖p‖.
    """
    gammas, gamma = [gamma_of(each) for each in stds], [gamma_of(std)]
    among = inner_products(times, gammas, times, gammas)
    along = inner_products(times, gammas, [time], gamma)[:, 0]
    weights = np.linalg.lstsq(among, along, rcond=None)[0].astype(np.float64)
    whole = float(inner_products([time], gamma, [time], gamma)[0, 0])
    apart = whole - 2.0 * float(weights @ along) + float(weights @ among @ weights)
    return weights, math.sqrt(max(apart, 0.0) / whole)
