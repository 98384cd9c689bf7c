"""Figures as JSON lines: one object a line with `step`, `split`, then the figures.

>>> import pathlib, tempfile
>>> path = pathlib.Path(tempfile.mkdtemp()) / "metrics.jsonl"
>>> writer = JsonLines(path, first_step=0)
>>> writer.write(100, "train", {"loss": 0.25})
>>> path.read_text()
'{"step": 100, "split": "train", "loss": 0.25}\\n'
"""

import json
import math
from collections.abc import Mapping
from pathlib import Path

from core.disk import space_for, write_whole


class JsonLines:
    """Appends to `path`, in such a way that a run killed and resumed leaves the lines of an undisturbed one.

    `first_step` is the step that the run goes on from: lines of later steps, and a last line cut short by a kill, are
    removed. At 0 the file begins anew. This holds if the lines of a step are written before its checkpoint.

    JSON has no word for infinity or not-a-number: such a figure is written as `null`, which readers take for a number
    that isn't there, while a figure that wasn't measured has no key at all.
    """

    def __init__(self, path: Path, first_step: int):
        with space_for(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.exists():
                kept = [line for line in path.read_bytes().splitlines(True) if _is_kept(line, first_step)]
                write_whole({path: b"".join(kept)})
        self._path, self._stream = path, path.open("ab", buffering=0)  # a line that finds no room isn't kept for later

    def write(self, step: int, split: str, figures: Mapping[str, float]) -> None:
        """Writes one line and hands it to the operating system, which keeps it even if this process is killed."""
        row = {"step": step, "split": split}
        if clash := row.keys() & figures.keys():
            raise ValueError(f"A figure is named `{min(clash)}`, the name of another column: rename the figure.")
        values = {name: float(value) for name, value in figures.items()}
        line = {**row, **{name: value if math.isfinite(value) else None for name, value in values.items()}}
        with space_for(self._path):
            rest = memoryview((json.dumps(line, allow_nan=False) + "\n").encode())
            while rest:  # what a disk that is nearly full still takes may be less than the line
                rest = rest[self._stream.write(rest) :]

    def close(self) -> None:
        """Closes the file."""
        self._stream.close()


def _is_kept(line: bytes, first_step: int) -> bool:
    if first_step == 0 or not line.endswith(b"\n"):
        return False
    try:
        return bool(json.loads(line)["step"] <= first_step)
    except (ValueError, KeyError, TypeError):  # no line of ours: the tail that a crashed file system left behind
        return False
