"""The operations that a device does in a second, where it can't be measured here."""

import gin

from core.errors import ConfigurationError, shown


@gin.configurable("DryRun")
def given_peak(*, peak: float | None = None) -> float | None:
    """Returns how many operations a device does in a second at best, of devices that can't be measured here."""
    if peak is not None and not (isinstance(peak, float | int) and 0 < peak < float("inf")):
        raise ConfigurationError(
            f"`DryRun.peak` is {shown(peak)}; it is what a device does in a second at best: give operations, as 312e12."
        )
    return peak
