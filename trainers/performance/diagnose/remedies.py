"""Gin lines that could make training faster, and what came of each when it was tried."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

WORTH = 1.05  # so many times as fast, and not less, is no chance


@dataclasses.dataclass(frozen=True)
class Remedy:
    """One gin line, and what it changes: settings of the trainer, the interval of a hook, or the devices."""

    line: str
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    hook: str = ""  # gin's name of that whose `every` becomes `every`
    every: int = 0
    devices: Sequence[str] = ()
    caution: str = ""  # what else it changes

    @property
    def interval(self) -> str:
        """Returns the name of the interval that it changes, if that is what it changes."""
        name = self.line.partition(" = ")[0]
        return name if self.hook or name.endswith("_every") else ""


@dataclasses.dataclass(frozen=True)
class Tried:
    """What a line did, in examples a second."""

    remedy: Remedy
    before: float
    after: float

    @property
    def times_as_fast(self) -> float:
        return self.after / self.before

    @property
    def helps(self) -> bool:
        return self.times_as_fast >= WORTH


def setting(name: str, value: Any, caution: str = "") -> Remedy:
    """Returns the line that binds a setting of the trainer."""
    return Remedy(f"Trainer.{name} = {value!r}", {name: value}, caution=caution)


def devices(names: Sequence[str]) -> Remedy:
    """Returns the line that has replicas on these devices alone."""
    return Remedy(f"mirrored.devices = {list(names)}", devices=names)


def interval(name: str, steps: int) -> Remedy:
    """Returns the line that binds an interval, `Trainer.log_every` or `MyHook.every`."""
    owner, _, parameter = name.partition(".")
    if owner == "Trainer":
        return setting(parameter, steps)
    return Remedy(f"{name} = {steps}", hook=owner, every=steps)
