"""Measures how much of the machine other processes used while one program ran."""

import os
import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

STAT = Path("/proc/stat")
IDLE = (3, 4)  # columns of idle time
GUEST = 8  # these columns repeat earlier ones' time


class Seen(NamedTuple):
    """Seconds so far: of the clock, of all cores, and of the programs that have ended."""

    now: float
    all_busy: float
    ours_busy: float


def seen() -> Seen:
    """Returns the seconds so far; if the system doesn't report them, other processes count as idle."""
    ours = resource.getrusage(resource.RUSAGE_CHILDREN)
    own = ours.ru_utime + ours.ru_stime
    if not STAT.exists():
        return Seen(time.perf_counter(), own, own)
    ticks = [int(x) for x in STAT.read_text().splitlines()[0].split()[1:]][:GUEST]
    busy = sum(x for i, x in enumerate(ticks) if i not in IDLE)
    return Seen(time.perf_counter(), busy / os.sysconf("SC_CLK_TCK"), own)


def share_of_others(before: Seen, after: Seen, cores: int) -> float:
    """Returns the fraction of the cores' time that other processes used between two calls of `seen`."""
    took = (after.all_busy - before.all_busy) - (after.ours_busy - before.ours_busy)
    return max(0.0, took / (cores * max(after.now - before.now, 1e-9)))


def undisturbed(run: Callable[[], dict[str, object]], *, at_most: float, tries: int) -> dict[str, object]:
    """Repeats a program while others used more than `at_most`; returns the result of the least disturbed run.

    The result has the other processes' fraction as `others`.
    """
    best: dict[str, object] = {}
    for _ in range(tries):
        before = seen()
        found = run()
        others = round(share_of_others(before, seen(), os.cpu_count() or 1), 3)
        if not best or others < float(str(best["others"])):
            best = {**found, "others": others}
        if others <= at_most or "failed" in found:
            break
    return best
