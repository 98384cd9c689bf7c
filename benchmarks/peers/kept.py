"""Results as JSON, written after every process: each work as the last run measured it."""

import json
from pathlib import Path
from typing import Any

from benchmarks.environments import FOLDER
from core.disk import write_whole

FILE = FOLDER / "results.json"


def read(path: Path) -> dict[str, Any]:
    """Returns the kept results by work: `machine` and `found`."""
    return dict(json.loads(path.read_text())) if path.exists() else {}


def write(path: Path, results: dict[str, Any]) -> None:
    """Writes all results at once."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole({path: json.dumps(results, indent=1).encode()})
