"""Estimates the least time of a step, from speeds measured here, or from a device's given peak."""

from collections.abc import Mapping
from typing import NamedTuple

from core.estimate import TURNS, Figures, Kind
from trainers.dry_run.build import DryBuild
from trainers.dry_run.operations import counted
from trainers.dry_run.speeds import Seconds, Speeds, measured_seconds, measured_speeds
from trainers.settings import given_peak


class Least(NamedTuple):
    """The least time of a step. It is the longer of all its `work` and its `chain` of dependent operations."""

    work: Mapping[str, float]  # seconds on all devices, by kind of work
    chain: float

    @property
    def seconds(self) -> float:
        """Returns the longer of `work` and `chain`, in seconds."""
        return max(sum(self.work.values()), self.chain)


def least(figures: Figures, speeds: Speeds, measured: Mapping[Kind, Seconds]) -> Least:
    """Returns a step's least time. Operations that weren't `measured` are estimated."""
    alone = {kind: times for kind, times in figures.kinds.items() if kind in measured}
    others = {kind: times for kind, times in figures.kinds.items() if kind not in measured}
    turns = figures.work[TURNS]
    work = {
        f"{sum(alone.values()):,.0f} operations, measured by themselves": sum(
            times * measured[kind].among for kind, times in alone.items()
        ),
        f"{sum(others.values()):,.0f} others, by what they compute, read and write": sum(
            times * speeds.supposed(kind).among for kind, times in others.items()
        ),
        f"{turns:,} turns of loops and choices": turns / speeds.turns,
    }
    chain = sum(
        times * (measured[kind] if kind in measured else speeds.supposed(kind)).alone
        for kind, times in figures.chain.items()
    )
    return Least(work, chain)


def measured_here(build: DryBuild, figures: Figures) -> tuple[Speeds, Least]:
    """Measures this machine with the step's own operations. Returns its speeds, and the step's least time."""
    devices = build.strategy.extended.worker_devices
    speeds = measured_speeds(devices)
    return speeds, least(figures, speeds, measured_seconds(figures.kinds, figures.chain, speeds, devices))


def how_long(build: DryBuild, figures: Figures) -> str:
    """Returns a sentence on the least time of a step, and on the utilisation that this time assumes."""
    operations, peak = figures.operations.total(), given_peak()
    if peak is not None:
        devices = build.paper.devices
        return (
            f"A step takes {_shown(operations / (devices * peak))} at least, on {devices} devices used to 100 % of "
            "`DryRun.peak`; what memory and network take comes on top."
        )
    if not build.paper.devices_are_here:
        return (
            "How long a step takes isn't known of devices that aren't here: say what one does at best, in operations a "
            "second, as `DryRun.peak = 312e12`."
        )
    speeds, found = measured_here(build, figures)
    parts = ", ".join(f"{_shown(x)} for {what}" for what, x in found.work.items())
    return (
        f"A step takes {_shown(found.seconds)} at least, as fast as this machine is just now: {parts}; and "
        f"{_shown(found.chain)} for the longest chain of those that wait for each other. So it is taken to be used to "
        f"{operations / speeds.peak / found.seconds:.0%} of its peak of {counted(speeds.peak)}."
    )


def _shown(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds >= 1 else f"{1000 * seconds:.3g} ms"
