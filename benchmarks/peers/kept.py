"""The results of runs, as JSON: each work as the last run that measured it has it, written after every process."""

import json
from pathlib import Path
from typing import Any

from benchmarks.environments import FOLDER
from core.disk import write_whole

FILE = FOLDER / "results.json"


def read(path: Path) -> dict[str, Any]:
    """Returns what is kept, by work: `machine` and `found`."""
    return dict(json.loads(path.read_text())) if path.exists() else {}


def write(path: Path, results: dict[str, Any]) -> None:
    """Writes all of it at once."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole({path: json.dumps(results, indent=1).encode()})
