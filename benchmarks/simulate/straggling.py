"""What the model says of the runs of `benchmarks.stragglers`: of their rates, and of what they keep of them."""

import statistics
from collections.abc import Iterator

from benchmarks.simulate.here import Check, Here
from benchmarks.simulate.measure import Size
from benchmarks.simulate.model import Job, Servers, asynchronous_rate, local_step_seconds, step_seconds
from benchmarks.stragglers import LOCAL_STEPS, MILLISECONDS, MODES, Found, kept

ALONE, SYNCHRONOUS, LOCAL, ASYNCHRONOUS = MODES


def checks(found: Found, here: Here) -> Iterator[Check]:
    """Goes through the runs of two workers. Of these runs the model is told what one process did alone, no more.

    But for the shortest asynchronous steps, of which what their exchange takes was fitted.
    """
    for ms in MILLISECONDS:
        for mode in (SYNCHRONOUS, LOCAL, ASYNCHRONOUS):
            run = found["runs"].get(f"{mode}, {ms} ms")
            if run is None:
                continue
            slow = 1 / statistics.median(kept(found["runs"][f"{ALONE}, {ms} ms"]))
            job = _job(found, ms, here)
            even, slowed = (_rate(mode, job, here, found, factor) for factor in (1.0, slow))
            if (mode, ms) != (ASYNCHRONOUS, MILLISECONDS[0]):
                yield Check(f"{mode}, {ms} ms: steps a second", statistics.median(run["even"]), even)
            yield Check(f"{mode}, {ms} ms: kept with a slow worker", statistics.median(kept(run)), slowed / even)


def servers(found: Found, here: Here) -> Servers:
    """Returns what the shortest steps took longer than one process alone."""
    ms = MILLISECONDS[0]
    cycle = 2 / statistics.median(found["runs"][f"{ASYNCHRONOUS}, {ms} ms"]["even"])
    return Servers(exchange=max(0.0, cycle - _job(found, ms, here).compute), locked=0.0)


def _job(found: Found, ms: int, here: Here) -> Job:
    alone = found["runs"][f"{ALONE}, {ms} ms"]
    return Job(1 / statistics.median(alone["even"]), Size(alone["products"], 0).gradients, spread=here.spread)


def _rate(mode: str, job: Job, here: Here, found: Found, slow: float) -> float:
    """Returns steps of one worker a second."""
    if mode == ASYNCHRONOUS:
        return asynchronous_rate(job, servers(found, here), 2, slow=slow)
    if mode == SYNCHRONOUS:
        return 2 / step_seconds(job, here.network, 2, slow=slow)
    state = job.gradients
    return 2 / local_step_seconds(job, here.network, 2, local_steps=LOCAL_STEPS, state=state, slow=slow)
