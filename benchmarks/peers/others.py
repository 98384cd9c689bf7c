"""How much of the machine others had while one program ran: what they take isn't a peer's fault."""

import os
import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

STAT = Path("/proc/stat")
IDLE = (3, 4)  # the columns of time in which nobody computed
GUEST = 8  # from here on columns count again what earlier ones hold


class Seen(NamedTuple):
    """Seconds so far: of the clock, of all cores, and of the programs that have ended."""

    now: float
    all_busy: float
    ours_busy: float


def seen() -> Seen:
    """Returns these seconds; where the system doesn't say, nobody else computes."""
    ours = resource.getrusage(resource.RUSAGE_CHILDREN)
    own = ours.ru_utime + ours.ru_stime
    if not STAT.exists():
        return Seen(time.perf_counter(), own, own)
    ticks = [int(x) for x in STAT.read_text().splitlines()[0].split()[1:]][:GUEST]
    busy = sum(x for i, x in enumerate(ticks) if i not in IDLE)
    return Seen(time.perf_counter(), busy / os.sysconf("SC_CLK_TCK"), own)


def share_of_others(before: Seen, after: Seen, cores: int) -> float:
    """Returns the part of the cores' time that others took in between."""
    took = (after.all_busy - before.all_busy) - (after.ours_busy - before.ours_busy)
    return max(0.0, took / (cores * max(after.now - before.now, 1e-9)))


def undisturbed(run: Callable[[], dict[str, object]], *, at_most: float, tries: int) -> dict[str, object]:
    """Runs a program again where others took more than `at_most`; returns what the least disturbed found.

    What they took is in it, as `others`.
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
