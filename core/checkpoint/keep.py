"""Retention of checkpoints: the last ones, those of every n-th step, and the best by a metric.

A checkpoint's metrics are in its manifest, so that the best one is known from the files alone, whenever a run was
killed. It is removed only for a better one, after that has been written.
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
    """Compares two values of a metric.

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
    """The best checkpoint so far."""

    by: str
    step: int
    value: float


@dataclasses.dataclass(frozen=True)
class Keep:
    """The checkpoints to keep: the `last`, each whose step `every` divides, and the `best`."""

    last: int = 3
    every: int | None = None
    best: Better | None = None

    def __post_init__(self) -> None:
        if self.last < 1:
            raise ValueError(f"`keep` is {self.last}; the newest checkpoint is always kept: give 1 or more.")


class Keeper:
    """Decides which checkpoints of a directory to keep."""

    def __init__(self, directory: Path, keep: Keep):
        self.directory, self.keep = directory, keep
        self._measured: dict[int, Mapping[str, Any]] = {}  # by step: manifests don't change

    def record(self, step: int, measured: Mapping[str, float]) -> dict[str, Any]:
        """Returns the manifest entry of a new checkpoint: why it is kept, and which one is the best then."""
        own = self._measured[step] = {name: x for name, x in measured.items() if math.isfinite(x)}
        best, every = self.best(step, new=step), self.keep.every
        because = ["last"]
        because += [f"every {every} steps"] if every and step % every == 0 else []
        because += [f"best by {best.by}"] if best and best.step == step else []
        return {KEPT: {"because": because, "measured": own, **({"best": best._asdict()} if best else {})}}

    def best(self, up_to: int, *, new: int | None = None) -> Best | None:
        """Returns the best checkpoint up to a step, among equals the oldest; `None` if none was measured.

        `new` is a step whose checkpoint is about to be written.
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
        """Removes what isn't kept up to `step`; later checkpoints are damaged, or a user went back."""
        steps = sorted({of for of, _ in checkpoints_in(self.directory) if of <= step})
        best = self.best(step)
        kept = {*steps[-self.keep.last :], *([best.step] if best else [])}
        kept |= {of for of in steps if self.keep.every and of % self.keep.every == 0}
        remove_old(self.directory, step, kept, warn)

    def tidy(self, step: int, warn: Warn) -> None:
        """Completes the removals of a save that was killed after writing its checkpoint of `step`."""
        remove_leftovers(self.directory, warn)
        self.remove_old(step, warn)

    def _measured_at(self, step: int) -> Mapping[str, Any]:
        if step not in self._measured:
            self._measured[step] = _measured_in(self.directory, step)
        return self._measured[step]


def kept_of(extra: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns from a manifest's `extra` why the checkpoint is kept."""
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
