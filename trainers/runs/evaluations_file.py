"""Files of evaluation metrics, one line per split and step, to which later evaluations add.

The process that holds the workdir's lock writes `metrics.jsonl`: the training run, or later `--mode=evaluate`.
Any other process writes `evaluations.jsonl`, by replacing the whole file. Each line also names its checkpoint. A run
that returns to an earlier step removes the later lines from both files.
"""

import hashlib
import json
import math
from collections.abc import Mapping
from pathlib import Path

from core.checkpoint import Manifest
from core.disk import write_whole
from core.telemetry.jsonl import line_of

Found = Mapping[str, Mapping[str, float]]  # metrics by split


def keep(path: Path, step: int, found: Found, *, of: Manifest | None = None) -> None:
    """Writes a line of metrics for each split to `path`, in place of one of the same step. `of` is the checkpoint."""
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
    """Returns {split: {metric: value}} of the file's lines at `step`; non-finite values are NaN."""
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
    """Returns {metric: |found - own| / max(1, |own|)} for metrics in both; infinite if only one value is NaN."""
    apart = {name: abs(found[name] - x) / max(1.0, abs(x)) for name, x in own.items() if name in found}
    both_nan = {name for name, x in own.items() if name in found and math.isnan(x) and not math.isfinite(found[name])}
    return {name: 0.0 if name in both_nan else x if math.isfinite(x) else math.inf for name, x in apart.items()}


def is_kept(path: Path, of: Manifest, splits: set[str]) -> bool:
    """Returns whether the file has metrics of exactly this checkpoint for all of these splits."""
    mark = fingerprint(of)
    of_it = [line for line in _lines(path) if _place(line)[0] == of.step and mark in line.decode(errors="replace")]
    return splits <= {_place(line)[1] for line in of_it}


def fingerprint(of: Manifest) -> str:
    """Returns a hash of a checkpoint's contents, which tells it from another checkpoint at the same step."""
    variables = "".join(f"{path} {v.sha256}\n" for path, v in sorted(of.variables.items()))
    return hashlib.sha256(variables.encode()).hexdigest()[:16]


def _lines(path: Path) -> list[bytes]:
    return path.read_bytes().splitlines(True) if path.exists() else []


def _place(line: bytes) -> tuple[int, str]:
    """Returns the step and split of a line; (0, "") for an invalid line."""
    try:
        row = json.loads(line)
        return int(row["step"]), str(row["split"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return 0, ""
