"""Predictions for the runs of `benchmarks.stragglers`: their rates, and the rates that they keep."""

import statistics
from collections.abc import Iterator

from benchmarks.simulate.check import Check
from benchmarks.simulate.here import Here
from benchmarks.simulate.measure import Size
from benchmarks.simulate.model import Job, Servers, asynchronous_rate, local_step_seconds, step_seconds
from benchmarks.stragglers import LOCAL_STEPS, MILLISECONDS, MODES, Found, kept

ALONE, SYNCHRONOUS, LOCAL, ASYNCHRONOUS = MODES


def checks(found: Found, here: Here, servers: Servers) -> Iterator[Check]:
    """Compares the runs of two workers; the only input is how slow the slowed worker was alone."""
    for ms in MILLISECONDS:
        alone = found["runs"].get(f"{ALONE}, {ms} ms")
        for mode in (SYNCHRONOUS, LOCAL, ASYNCHRONOUS):
            run = found["runs"].get(f"{mode}, {ms} ms")
            if run is None or alone is None:
                continue
            # A process alone is faster than each of two: they share more of a processor than its cores.
            job = Job(alone["products"] * here.product, Size(alone["products"], 0).gradients, spread=here.spread)
            slow = 1 / statistics.median(kept(alone))
            even, slowed = (_rate(mode, job, here, servers, factor) for factor in (1.0, slow))
            yield Check(f"{mode}, {ms} ms: steps a second", statistics.median(run["even"]), even)
            yield Check(f"{mode}, {ms} ms: kept with a slow worker", statistics.median(kept(run)), slowed / even)


def _rate(mode: str, job: Job, here: Here, servers: Servers, slow: float) -> float:
    """Returns the steps of one worker a second."""
    if mode == ASYNCHRONOUS:
        return asynchronous_rate(job, servers, 2, slow=slow)
    if mode == SYNCHRONOUS:
        return 2 / step_seconds(job, here.network, 2, slow=slow)
    state = job.gradients
    return 2 / local_step_seconds(job, here.network, 2, local_steps=LOCAL_STEPS, state=state, slow=slow)
