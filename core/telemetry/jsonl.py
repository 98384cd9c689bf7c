"""Writes metrics as JSON lines: one object per line, with `step`, `split` and the metrics.

>>> import pathlib, tempfile
>>> path = pathlib.Path(tempfile.mkdtemp()) / "metrics.jsonl"
>>> writer = JsonLines(path, first_step=0)
>>> writer.write(100, "train", {"loss": 0.25})
>>> path.read_text()
'{"step": 100, "split": "train", "loss": 0.25}\\n'
"""

import json
import math
import re
from collections.abc import Mapping
from io import FileIO
from pathlib import Path
from typing import Any

from core.disk import GOES_ON, append_whole, space_for, write_whole

_NUMBER = re.compile(r"(?<![\w/`])\d+|(?<=[/`])\d+(?![\d/`])")  # not part of a name, nor a whole name in a path
CHECKPOINT = "checkpoint"  # the column for the checkpoint of a line that another process wrote
_encode = json.JSONEncoder(allow_nan=False).encode


class StepLines:
    """Appends JSON objects with a `step` to the file `path`. After a resume, no step is there twice.

    The run resumes from `first_step`. Lines of later steps are removed, and a last line that a kill cut short. If
    `first_step` is 0, the file starts empty. A missing file is created with its first line. Write the lines of a step
    before its checkpoint. Otherwise a kill can lose lines.
    """

    then = GOES_ON  # once the disk is full

    def __init__(self, path: Path, first_step: int):
        self._path = path
        self._stream: FileIO | None = None
        self.rewind(first_step)

    def rewind(self, step: int) -> None:
        """Removes the lines of steps after `step`. If `step` is 0, removes all lines."""
        self.close()
        with space_for(self._path):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            if self._path.exists():
                kept = [line for line in self._path.read_bytes().splitlines(True) if _is_kept(line, step)]
                write_whole({self._path: b"".join(kept)})

    def append(self, line: Mapping[str, Any]) -> None:
        """Writes one line to the operating system at once. It survives if this process is killed."""
        with space_for(self._path, then=self.then):
            append_whole(self.open(), f"{_encode(line)}\n".encode())

    def open(self) -> FileIO:
        """Opens the file for appending, and creates it if it is missing."""
        if self._stream is None:
            self._stream = self._path.open("ab", buffering=0)  # on a full disk, a line isn't kept for later
        return self._stream

    def close(self) -> None:
        if self._stream is not None:
            self._stream.close()
            self._stream = None


class JsonLines(StepLines):
    """Appends metrics to a JSON-lines file.

    JSON has no infinity or NaN, so such a value is written as `null`. Readers treat `null` as missing. A metric that
    wasn't measured has no key.
    """

    def __init__(self, path: Path, first_step: int):
        super().__init__(path, first_step)
        with space_for(path):
            self.open()

    def write(self, step: int, split: str, figures: Mapping[str, float]) -> None:
        self.append(_row(step, split, figures))


def line_of(step: int, split: str, figures: Mapping[str, float], checkpoint: str | None = None) -> bytes:
    """Returns the line that `JsonLines` writes for `figures`, as bytes. `checkpoint` becomes a column."""
    marks = {} if checkpoint is None else {CHECKPOINT: checkpoint}
    return f"{_encode(_row(step, split, figures, marks))}\n".encode()


def _row(step: int, split: str, figures: Mapping[str, float], marks: Mapping[str, str] = {}) -> dict[str, Any]:
    row = {"step": step, "split": split, **marks}
    if clash := row.keys() & figures.keys():
        raise ValueError(f"A metric is named `{min(clash)}`, the name of another column: rename the metric.")
    values = {name: float(value) for name, value in figures.items()}
    return {**row, **{name: value if math.isfinite(value) else None for name, value in values.items()}}


def _is_kept(line: bytes, first_step: int) -> bool:
    if first_step == 0 or not line.endswith(b"\n"):
        return False
    try:
        return bool(json.loads(line)["step"] <= first_step)
    except (ValueError, KeyError, TypeError):  # not our line: the remains of a file system crash
        return False


class Warned(StepLines):
    """Appends warnings to the file `path`. A warning that the file already has isn't repeated after a restart."""

    then = "until then warnings are shown, but not kept"

    def rewind(self, step: int) -> None:
        """Removes the warnings of steps after `step`, so that they can be written again."""
        super().rewind(step)
        lines = self._path.read_bytes().splitlines() if self._path.exists() else []
        self._texts = {str(json.loads(line).get("warning")) for line in lines}

    def warn(self, step: int, text: str, *, each: bool = False) -> None:
        """Appends the warning `text` unless the file has it. With `each=False`, differences in numbers don't count."""
        there = text in self._texts or (not each and gist(text) in map(gist, self._texts))
        if not there:
            self.append({"step": step, "warning": text})
            self._texts.add(text)


def gist(text: str) -> str:
    """Returns `text` without numbers, to compare warnings. Digits in names stay, because they identify modules.

    >>> gist("31 % of the time was spent waiting") == gist("2 % of the time was spent waiting")
    True
    >>> gist("`layers/0` explodes") == gist("`layers/1` explodes") or gist("`conv1`") == gist("`conv2`")
    False
    """
    return _NUMBER.sub("", text)
