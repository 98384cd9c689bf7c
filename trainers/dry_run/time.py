"""How long a step takes at least, by speeds that are measured here, or by the one that a device is said to have."""

import gin

from core.errors import ConfigurationError, shown
from core.estimate import MOVED, NEAR, STARTED, TURNS, Figures
from trainers.dry_run.build import DryBuild
from trainers.dry_run.operations import counted
from trainers.dry_run.speeds import Speeds, measured_speeds
from trainers.sizes import size
from trainers.utilisation import measured_peak


@gin.configurable("DryRun")
def given_peak(*, peak: float | None = None) -> float | None:
    """Returns how many operations a device does in a second at best, of devices that can't be measured here."""
    if peak is not None and not (isinstance(peak, float | int) and 0 < peak < float("inf")):
        raise ConfigurationError(
            f"`DryRun.peak` is {shown(peak)}; it is what a device does in a second at best: give operations, as 312e12."
        )
    return peak


def speeds_for(build: DryBuild, figures: Figures) -> Speeds:
    """Measures this machine, by the step's own products."""
    return measured_speeds(build.strategy.extended.worker_devices, figures.products)


def least_seconds(figures: Figures, speeds: Speeds) -> dict[str, float]:
    """Returns the time of each part of a step, as fast as at best, by what it is."""
    operations, work = figures.operations.total(), figures.work
    return {
        f"{counted(operations)} operations at {counted(speeds.operations)} a second": operations / speeds.operations,
        f"{size(work[MOVED])} through memory at {size(speeds.bytes)}": work[MOVED] / speeds.bytes,
        f"{size(work[NEAR])} through caches at {size(speeds.near)}": work[NEAR] / speeds.near,
        f"{work[STARTED]:,} starts at {counted(speeds.starts)}": work[STARTED] / speeds.starts,
        f"{work[TURNS]:,} turns of loops and choices at {counted(speeds.turns)}": work[TURNS] / speeds.turns,
    }


def how_long(build: DryBuild, figures: Figures) -> str:
    """Says it in a sentence, with the utilisation that it takes for granted."""
    operations, peak = figures.operations.total(), given_peak()
    if peak is not None:
        devices = build.plan.devices if build.plan else build.replicas
        return (
            f"A step takes {_shown(operations / (devices * peak))} at least, on {devices} devices used to 100 % of "
            "`DryRun.peak`; what memory and network take comes on top."
        )
    if build.plan:
        return (
            "How long a step takes isn't known of devices that aren't here: say what one does at best, in operations a "
            "second, as `DryRun.peak = 312e12`."
        )
    speeds, best = speeds_for(build, figures), measured_peak(build.strategy.extended.worker_devices)
    least = least_seconds(figures, speeds)
    parts, seconds = ", ".join(f"{_shown(x)} for {what}" for what, x in least.items()), sum(least.values())
    return (
        f"A step takes {_shown(seconds)} at least, as fast as this machine is just now: {parts}. So it is taken to be "
        f"used to {operations / best / seconds:.0%} of its peak of {counted(best)}."
    )


def _shown(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds >= 1 else f"{1000 * seconds:.3g} ms"
