"""Interleaved measurements: the machine's speed drifts, so each run is compared with the peer's next to it."""

import time
from collections.abc import Callable, Mapping

import numpy as np

SAMPLES = 1000


def interleaved(runs: Mapping[str, Callable[[], object]], *, pairs: int) -> dict[str, np.ndarray]:
    """Returns the seconds of each run, in `pairs` rounds over all of them, every other round in reverse.

    A run that returns a float has timed itself.
    """
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for name in runs:
        runs[name]()  # warm
    for i in range(pairs):
        for name in list(runs)[:: 1 if i % 2 == 0 else -1]:
            began = time.perf_counter()
            own = runs[name]()
            seconds[name].append(own if isinstance(own, float) else time.perf_counter() - began)
    return {name: np.array(found) for name, found in seconds.items()}


def ratio(ours: np.ndarray, peer: np.ndarray) -> tuple[float, float, float]:
    """Returns the median of the paired ratios, with a 95 % bootstrap interval."""
    ratios = ours / peer
    random = np.random.RandomState(0)
    medians = np.median(random.choice(ratios, (SAMPLES, len(ratios))), axis=1)
    low, high = np.percentile(medians, [2.5, 97.5])
    return float(np.median(ratios)), float(low), float(high)
