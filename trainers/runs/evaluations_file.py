"""Figures that are found after the fact, of a checkpoint: each has its line once, where the run would have written it.

`metrics.jsonl` is written by who holds the lock of the workdir: a run while it is at work, `--mode=evaluate` otherwise.
Who doesn't hold it writes `evaluations.jsonl`, by putting a whole new file in its place: lines of the same form, each
with the checkpoint that its figures are of. A run that goes back to an earlier step removes the later ones of both.
"""

import hashlib
import json
import math
from collections.abc import Mapping
from pathlib import Path

from core.checkpoint import Manifest
from core.disk import write_whole
from core.telemetry.jsonl import line_of

Found = Mapping[str, Mapping[str, float]]  # figures by split


def keep(path: Path, step: int, found: Found, *, of: Manifest | None = None) -> None:
    """Puts a line for each split into the file at `path`, in place of one that is there; `of` is what they tell of."""
    mark = fingerprint(of) if of else None
    new = {split: line_of(step, split, figures, mark) for split, figures in found.items()}
    lines = [line for line in _lines(path) if line.endswith(b"\n")]
    kept, after = [], 0
    for line in lines:
        at, split = _place(line)
        kept.append(new.pop(split) if at == step and split in new else line)
        after = len(kept) if at <= step else after
    kept[after:after] = new.values()
    if kept != lines:
        write_whole({path: b"".join(kept)})


def figures_at(path: Path, step: int) -> dict[str, dict[str, float]]:
    """Returns by split the figures that a file has of a step; a value that isn't finite is NaN."""
    found = {}
    for line in _lines(path):
        of, split = _place(line)
        if of == step and split:
            figures = {name: x for name, x in json.loads(line).items() if name not in ("step", "split")}
            found[split] = {
                name: math.nan if x is None else float(x) for name, x in figures.items() if not isinstance(x, str)
            }
    return found


def differences(own: Mapping[str, float], found: Mapping[str, float]) -> dict[str, float]:
    """Returns how far figures lie apart, relative to what is larger than one; infinite where one isn't a number."""
    apart = {name: abs(found[name] - x) / max(1.0, abs(x)) for name, x in own.items() if name in found}
    both_nan = {name for name, x in own.items() if name in found and math.isnan(x) and not math.isfinite(found[name])}
    return {name: 0.0 if name in both_nan else x if math.isfinite(x) else math.inf for name, x in apart.items()}


def is_kept(path: Path, of: Manifest, splits: set[str]) -> bool:
    """Says whether the file has the figures of this very checkpoint for all of these splits."""
    mark = fingerprint(of)
    of_it = [line for line in _lines(path) if _place(line)[0] == of.step and mark in line.decode(errors="replace")]
    return splits <= {_place(line)[1] for line in of_it}


def fingerprint(of: Manifest) -> str:
    """Returns what tells a checkpoint from another one of the same step: where bits are the same, so is this."""
    variables = "".join(f"{path} {v.sha256}\n" for path, v in sorted(of.variables.items()))
    return hashlib.sha256(variables.encode()).hexdigest()[:16]


def _lines(path: Path) -> list[bytes]:
    return path.read_bytes().splitlines(True) if path.exists() else []


def _place(line: bytes) -> tuple[int, str]:
    """Returns step and split of a line; those of nothing where it isn't one."""
    try:
        row = json.loads(line)
        return int(row["step"]), str(row["split"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return 0, ""
