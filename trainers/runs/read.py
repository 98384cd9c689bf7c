"""Reads a run from its folder, without writing, locking or waiting.

The run may be running, or may have been killed at any moment. Unreadable files are listed in `Run.damage`. The rest is
returned.
"""

import dataclasses
import json
import math
import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from core.errors import EXIT_CODES, INTERRUPTED, ConfigurationError, PreemptedError, as_said
from core.telemetry.jsonl import CHECKPOINT
from trainers.gin_audit.parse import read_all
from trainers.gin_audit.statements import Macro, text
from trainers.runs.figures import Curve
from trainers.workdir import is_locked

SIGNS = (".lock", "run.json", "result.json", "metrics.jsonl")  # a folder with one of these is a run's
RUNNING, FINISHED, STOPPED, FAILED, NEVER_BEGAN = "running", "finished", "stopped", "failed", "never began"


@dataclasses.dataclass(frozen=True)
class Run:
    """The contents of a run's folder. `heard` is the time of its last write, in seconds since 1970."""

    path: Path
    state: str
    exit_code: int | None
    reason: str
    step: int
    steps: int | None
    heard: float
    figures: Mapping[str, Curve]
    configuration: Mapping[str, str]
    record: Mapping[str, Any]
    warnings: tuple[tuple[int, str], ...]  # each with its step
    damage: tuple[str, ...]

    @property
    def name(self) -> str:
        """Returns the run's path, safe to print."""
        return as_said(str(self.path)).replace("\n", "\\n")

    @property
    def checkpoint(self) -> str:
        """Returns the path of the newest checkpoint, or ""."""
        return str(max((self.path / "checkpoints").glob("step-*"), default=""))

    @property
    def reached(self) -> str:
        """Returns the run's step and, if different, its planned number of steps, as "50 of 100"."""
        return f"{self.step:,}" + (f" of {self.steps:,}" if self.steps not in (None, self.step) else "")

    @property
    def ending(self) -> str:
        """Returns the run's state in a few words."""
        if self.state in (FAILED, NEVER_BEGAN) and self.exit_code is not None:
            return f"{self.state} ({self.exit_code}: {EXIT_CODES.get(self.exit_code, 'none of our exit codes')})"
        return self.state


def is_run(path: Path) -> bool:
    return any(os.path.isfile(path / name) for name in SIGNS)  # unlike a `Path`'s, no error without permission


def read_run(path: Path) -> Run:
    """Returns the run of a folder, in which any file may be missing."""
    damage: list[str] = []
    configuration = _configuration(path / "config" / "operative.gin", damage)
    figures = _figures(path, damage)
    record, result = _object(path / "run.json", damage), _object(path / "result.json", damage)
    state, exit_code, reason = _state(path, result, began=bool(record))
    measured = max((curve.steps[-1] for curve in figures.values()), default=0)
    saved = max((_step_of(each.name) for each in (path / "checkpoints").glob("step-*")), default=0)
    ended = result.get("step")
    steps = configuration.get("Trainer.steps", "")
    return Run(
        path=path,
        state=state,
        exit_code=exit_code,
        reason=reason,
        step=max(measured, saved, ended if type(ended) is int else 0),
        steps=int(steps) if steps.isdecimal() else None,
        heard=max(_modified(path / name) for name in SIGNS),
        figures=figures,
        configuration=configuration,
        record=record,
        warnings=tuple(_warnings(path / "warnings.jsonl", damage)),
        damage=tuple(map(as_said, damage)),
    )


def _state(path: Path, result: Mapping[str, Any], *, began: bool) -> tuple[str, int | None, str]:
    """Returns the state, the exit code if there is one, and the reason."""
    if is_locked(path / ".lock"):
        return RUNNING, None, ""
    code, reason = result.get("exit_code"), as_said(str(result.get("reason", "")))
    if type(code) is not int:
        if not began:
            return NEVER_BEGAN, None, "it was stopped before its first step"
        return STOPPED, None, "it left no result: it was killed, or runs on a machine whose locks aren't visible here"
    if code == 0:
        return FINISHED, code, reason
    if type(result.get("step")) is not int:
        return NEVER_BEGAN, code, reason
    return STOPPED if code in (PreemptedError.exit_code, INTERRUPTED) else FAILED, code, reason


def _figures(path: Path, damage: list[str]) -> dict[str, Curve]:
    """Returns {split/name: curve} of both metric files, in order of first appearance, `metrics.jsonl` first."""
    points, later = (_points(path / name, damage) for name in ("metrics.jsonl", "evaluations.jsonl"))
    for name, values in later.items():
        points[name] = values | points.get(name, {})
    ordered = {as_said(name): sorted(values.items()) for name, values in points.items()}
    return {name: Curve(*map(tuple, zip(*values, strict=True))) for name, values in ordered.items()}


def _points(path: Path, damage: list[str]) -> dict[str, dict[int, float]]:
    """Returns {metric: {step: value}} of a JSON-lines file."""
    points: dict[str, dict[int, float]] = {}
    unread = []
    for number, line in enumerate((_bytes(path, damage) or b"").splitlines(True), 1):
        try:
            row = json.loads(line)
            step, split = row.pop("step"), str(row.pop("split"))
            if type(step) is not int or not 0 <= step < 2**63:
                raise TypeError
            if path.name == "evaluations.jsonl":
                row.pop(CHECKPOINT, None)
            values = {f"{split}/{name}": _number(value) for name, value in row.items()}
        except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError):
            if line.endswith(b"\n"):  # otherwise an incomplete line
                unread.append(number)
            continue
        for name, value in values.items():
            points.setdefault(name, {})[step] = value
    if unread:
        damage.append(f"lines of `{path.name}` can't be read: {len(unread)}, the first of them line {unread[0]}")
    return points


def _warnings(path: Path, damage: list[str]) -> Iterator[tuple[int, str]]:
    """Yields the run's warnings with their steps."""
    unread = 0
    for line in (_bytes(path, damage) or b"").splitlines(True):
        try:
            row = json.loads(line)
            yield int(row["step"]), str(row["warning"])
        except (ValueError, TypeError, LookupError, ArithmeticError, RecursionError):
            unread += line.endswith(b"\n")
    if unread:
        damage.append(f"lines of `{path.name}` can't be read: {unread}")


def _number(value: Any) -> float:
    """Returns a metric; NaN for null, which stands for a value that isn't finite."""
    x = math.nan if value is None else float(value)
    return x if math.isfinite(x) else math.nan


def _configuration(path: Path, damage: list[str]) -> dict[str, str]:
    """Returns {parameter: value in gin syntax} of the operative configuration, with macros resolved."""
    if _bytes(path, damage) is None:
        return {}
    try:
        bindings = read_all([str(path)], [], []).bindings
    except ConfigurationError as error:
        damage.append(str(error))
        return {}
    macros = {b.name: b.value for b in bindings if b.is_macro}
    return {b.name: text(_without_macros(b.value, macros)) for b in bindings if not b.is_macro}


def _without_macros(value: Any, macros: Mapping[str, Any]) -> Any:
    """Replaces macros by their values. A macro that refers to itself stays."""
    if isinstance(value, Macro) and value.name in macros:
        rest = {name: x for name, x in macros.items() if name != value.name}
        return _without_macros(macros[value.name], rest)
    if isinstance(value, list | tuple):
        return type(value)(_without_macros(item, macros) for item in value)
    if isinstance(value, dict):
        return {key: _without_macros(item, macros) for key, item in value.items()}
    return value


def _object(path: Path, damage: list[str]) -> dict[str, Any]:
    """Returns the object in a JSON file. If the file holds none, returns {} and adds a note to `damage`."""
    content = _bytes(path, damage)
    if content is None:
        return {}
    try:
        found = json.loads(content)
    except (ValueError, RecursionError):
        found = None
    if isinstance(found, dict):
        return found
    damage.append(f"`{path.name}` holds no JSON object")
    return {}


def _bytes(path: Path, damage: list[str]) -> bytes | None:
    """Returns a file's content; None if it can't be read, with a note in `damage` unless it doesn't exist."""
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):  # opening a pipe would block
            damage.append(f"`{path.name}` isn't a plain file")
            return None
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        damage.append(f"`{path.name}` can't be read: {error.strerror}")
        return None


def _step_of(checkpoint: str) -> int:
    number = checkpoint.removeprefix("step-")
    return int(number) if number.isdecimal() and number.isascii() else 0


def _modified(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
