"""What may change without changing a number: values of a few settings, as gin lines, and what was chosen of them."""

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from core.task import ONE_DEVICE, Placement

PLACEMENTS = "placements"


@dataclasses.dataclass(frozen=True)
class Change:
    """Another value of one setting of the trainer, or of the experiment's `placements`."""

    setting: str
    value: Any

    @property
    def shown(self) -> str:
        """Returns the value as gin reads it."""
        return _shown(self.value)

    @property
    def line(self) -> str:
        """Returns the gin line that makes it."""
        owner = "Experiment" if self.setting == PLACEMENTS else "Trainer"
        return f"{owner}.{self.setting} = {self.shown}"


@dataclasses.dataclass(frozen=True)
class NotTried:
    """A value that isn't tried, and why."""

    setting: str
    shown: str
    why: str


@dataclasses.dataclass(frozen=True)
class Choice:
    """The changes that were chosen so far, by setting."""

    changes: Mapping[str, Change] = dataclasses.field(default_factory=dict)

    def with_change(self, change: Change) -> "Choice":
        """Returns the choice with one change more, in place of one of the same setting."""
        return Choice({**self.changes, change.setting: change})

    @property
    def settings(self) -> dict[str, Any]:
        """Returns what the trainer's settings become."""
        return {name: change.value for name, change in self.changes.items() if name != PLACEMENTS}

    @property
    def placements(self) -> Mapping[str, Placement] | None:
        """Returns what the experiment's placements become, if they change."""
        return self.changes[PLACEMENTS].value if PLACEMENTS in self.changes else None

    @property
    def lines(self) -> list[str]:
        """Returns the gin lines, ready to paste."""
        return [change.line for change in self.changes.values()]


def _shown(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_shown(key)}: {_shown(x)}" for key, x in value.items()) + "}"
    if isinstance(value, Placement):
        return "@on_one_device()" if value == ONE_DEVICE else "@on_every_replica()"
    return json.dumps(value) if isinstance(value, str) else repr(value)
