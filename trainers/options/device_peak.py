"""Peak operations per second of devices that aren't present."""

import gin

from core.errors import ConfigurationError, shown


@gin.configurable("DryRun")
def given_peak(*, peak: float | None = None) -> float | None:
    """Returns `DryRun.peak`, the peak operations per second of a device that can't be measured here."""
    if peak is not None and not (isinstance(peak, float | int) and 0 < peak < float("inf")):
        raise ConfigurationError(
            f"`DryRun.peak` is {shown(peak)}; it is a device's peak operations per second: give a number, as 312e12."
        )
    return peak
