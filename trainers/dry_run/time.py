"""How long a step takes at least, by speeds that are measured here, or by the one that a device is said to have."""

import gin

from core.errors import ConfigurationError, shown
from core.estimate import MOVED, PRODUCTS, STARTED, Figures
from trainers.dry_run.build import DryBuild
from trainers.dry_run.operations import counted
from trainers.sizes import size
from trainers.utilisation import Speeds, measured_peak, measured_speeds


@gin.configurable("DryRun")
def given_peak(*, peak: float | None = None) -> float | None:
    """Returns how many operations a device does in a second at best, of devices that can't be measured here."""
    if peak is not None and not (isinstance(peak, float | int) and 0 < peak < float("inf")):
        raise ConfigurationError(
            f"`DryRun.peak` is {shown(peak)}; it is what a device does in a second at best: give operations, as 312e12."
        )
    return peak


def speeds_for(build: DryBuild, figures: Figures) -> Speeds:
    """Measures this machine, with products as large as the step's are on average."""
    each = figures.operations.total() / max(1, figures.work[PRODUCTS])
    return measured_speeds(build.strategy.extended.worker_devices, operations=each)


def least_seconds(figures: Figures, speeds: Speeds) -> float:
    """Returns the time of a step whose parts are done one after the other, each as fast as at best."""
    products = figures.operations.total() / speeds.operations
    return products + figures.work[MOVED] / speeds.bytes + figures.work[STARTED] / speeds.starts


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
    seconds = least_seconds(figures, speeds)
    work = {
        f"{counted(operations)} operations at {counted(speeds.operations)} a second": operations / speeds.operations,
        f"{size(figures.work[MOVED])} through memory at {size(speeds.bytes)}": figures.work[MOVED] / speeds.bytes,
        f"{figures.work[STARTED]:,} starts at {counted(speeds.starts)}": figures.work[STARTED] / speeds.starts,
    }
    parts = ", ".join(f"{_shown(least)} for {what}" for what, least in work.items())
    return (
        f"A step takes {_shown(seconds)} at least, as fast as this machine is just now: {parts}. So it is taken to be "
        f"used to {operations / best / seconds:.0%} of its peak of {counted(best)}."
    )


def _shown(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds >= 1 else f"{1000 * seconds:.3g} ms"
