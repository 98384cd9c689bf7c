"""Deadlines for progress in each section of a run: given, or derived from the section's longest pause so far."""

import dataclasses
import math
from collections.abc import Mapping

from core.arguments import listed
from core.errors import ConfigurationError, did_you_mean, shown

TIMES = 10.0  # times the longest pause so far
LEAST = {  # lower bounds in seconds: compiling, a disk or a network may be slow once
    "set-up": 3600.0,
    "tracing": 3600.0,
    "data": 900.0,
    "step": 900.0,
    "evaluation": 900.0,
    "hook": 900.0,
    "save": 1800.0,
}


@dataclasses.dataclass(frozen=True)
class Limits:
    """Deadlines in seconds; None means never.

    `general` is the upper bound, and the deadline of a section that hasn't ended before. Set-up has at least an hour,
    because it may read much data. `given`, {section: deadline}, overrides all other deadlines.
    """

    general: float | None = 3600.0  # no reasonable tracing, save or chunk of evaluation takes an hour
    given: Mapping[str, float | None] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        _check_time("Trainer.section_deadline", self.general)
        if not isinstance(self.given, Mapping):
            raise ConfigurationError(
                f"`Trainer.section_deadlines` is {shown(self.given)}; give a dictionary from sections to seconds, such "
                "as {'evaluation': 600}."
            )
        for section, seconds in self.given.items():
            if section not in LEAST:
                raise ConfigurationError(
                    f"`Trainer.section_deadlines` names the section {shown(section)}; the sections of a run are "
                    f"{listed(LEAST)}.{did_you_mean(str(section), LEAST)}"
                )
            _check_time(f"Trainer.section_deadlines['{section}']", seconds)

    def of(self, section: str, longest: float | None) -> float | None:
        """Returns the deadline of a section, given its `longest` pause so far, if known."""
        if section in self.given:
            return self.given[section]
        if self.general is None or longest is None:
            return self.general and max(self.general, LEAST[section] if section == "set-up" else 0.0)
        return min(self.general, max(LEAST[section], TIMES * longest))

    def reason(self, section: str, limit: float) -> str:
        """Returns the reason for the deadline `limit` of a section, as text for an error."""
        if section in self.given:
            return f"`Trainer.section_deadlines['{section}']`"
        if limit == self.general:
            return "`Trainer.section_deadline`"
        if section == "set-up":
            return "no set-up should take that"
        return f"{TIMES:g} times its longest pause so far, at least {LEAST[section]:g} s"

    @property
    def shortest(self) -> float | None:
        """Returns the shortest possible deadline; None if there is none."""
        found = [self.of(section, 0.0) for section in LEAST]
        return min((limit for limit in found if limit is not None), default=None)


def _check_time(name: str, seconds: object) -> None:
    if seconds is None:
        return
    if not isinstance(seconds, float | int) or isinstance(seconds, bool) or not 0 < seconds < math.inf:
        raise ConfigurationError(
            f"`{name}` is {shown(seconds)}; it is a time in seconds: give a number above 0, or None for no deadline."
        )
