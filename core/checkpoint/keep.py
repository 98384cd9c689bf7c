"""Decides which checkpoints to keep: the last few, every n-th step, and the best by a metric.

Each manifest holds its checkpoint's metrics, so the files alone tell which one is best, even after a kill. The best
checkpoint is removed only after a better one is written.
"""

import dataclasses
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from core.checkpoint.files import Warn, checkpoints_in, remove_leftovers, remove_old
from core.checkpoint.manifest import DamagedError, read_manifest

KEPT = "kept"  # the entry of a manifest's `extra`


class Better(NamedTuple):
    """Defines which of two values of a metric is better: the larger ("max") or the smaller ("min").

    >>> str(Better("max", "accuracy")), Better("min", "loss").beats(0.2, 0.3)
    ('max accuracy', True)
    """

    way: str  # "max" or "min"
    figure: str

    def __str__(self) -> str:
        return f"{self.way} {self.figure}"

    def beats(self, value: float, other: float) -> bool:
        """Says whether `value` is better than `other`."""
        return value > other if self.way == "max" else value < other


class Best(NamedTuple):
    """The checkpoint with the best value of a metric: `by` ("max accuracy"), `step` and `value`."""

    by: str
    step: int
    value: float


@dataclasses.dataclass(frozen=True)
class Keep:
    """Which checkpoints to keep: the newest `last` ones, each whose step is a multiple of `every`, and the `best`."""

    last: int = 3
    every: int | None = None
    best: Better | None = None

    def __post_init__(self) -> None:
        if self.last < 1:
            raise ValueError(f"`keep` is {self.last}; the newest checkpoint is always kept: give 1 or more.")


class Keeper:
    """Applies a `Keep` to the checkpoints of one directory."""

    def __init__(self, directory: Path, keep: Keep):
        self.directory, self.keep = directory, keep
        self._measured: dict[int, Mapping[str, Any]] = {}  # by step: manifests don't change

    def record(self, step: int, measured: Mapping[str, float]) -> dict[str, Any]:
        """Returns a new checkpoint's entry for its manifest: reasons to keep it, finite metrics, the best step."""
        own = self._measured[step] = {name: x for name, x in measured.items() if math.isfinite(x)}
        best, every = self.best(step, new=step), self.keep.every
        because = ["last"]
        because += [f"every {every} steps"] if every and step % every == 0 else []
        because += [f"best by {best.by}"] if best and best.step == step else []
        return {KEPT: {"because": because, "measured": own, **({"best": best._asdict()} if best else {})}}

    def best(self, up_to: int, *, new: int | None = None) -> Best | None:
        """Returns the checkpoint with the best metric up to step `up_to`; `None` if no checkpoint has the metric.

        Among equal values, the oldest wins. `new` is the step of a checkpoint about to be written, which counts too.
        """
        by, found = self.keep.best, None
        if by is None:
            return None
        there = {step for step, _ in checkpoints_in(self.directory)} | ({new} if new is not None else set())
        for step in sorted(step for step in there if step <= up_to):
            value = self._measured_at(step).get(by.figure)
            if value is not None and (found is None or by.beats(value, found.value)):
                found = Best(str(by), step, value)
        return found

    def remove_old(self, step: int, warn: Warn) -> None:
        """Removes checkpoints up to `step` that needn't be kept. Later ones may be damaged, and stay."""
        steps = sorted({of for of, _ in checkpoints_in(self.directory) if of <= step})
        best = self.best(step)
        kept = {*steps[-self.keep.last :], *([best.step] if best else [])}
        kept |= {of for of in steps if self.keep.every and of % self.keep.every == 0}
        remove_old(self.directory, step, kept, warn)

    def tidy(self, step: int, warn: Warn) -> None:
        """Finishes a killed save: removes leftovers, and checkpoints up to `step` that needn't be kept."""
        remove_leftovers(self.directory, warn)
        self.remove_old(step, warn)

    def _measured_at(self, step: int) -> Mapping[str, Any]:
        if step not in self._measured:
            self._measured[step] = _measured_in(self.directory, step)
        return self._measured[step]


def kept_of(extra: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the entry that `Keeper.record` made, from a manifest's `extra`; empty if there is none."""
    found = extra.get(KEPT)
    return found if isinstance(found, dict) else {}


def _measured_in(directory: Path, step: int) -> Mapping[str, Any]:
    for of, path in checkpoints_in(directory):
        if of == step:
            try:
                return dict(kept_of(read_manifest(path).extra).get("measured", {}))
            except DamagedError:
                continue
    return {}
