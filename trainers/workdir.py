"""The folder of a run: what lies where, and who it belongs to."""

import fcntl
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from core.errors import ConfigurationError
from core.room import disk_full, room_for


class Workdir:
    """Paths below one folder, and the small JSON files that say how a run was started and how it ended."""

    def __init__(self, path: Path):
        self.path = path
        self.checkpoints = path / "checkpoints"
        self.configurations = path / "config"
        self.metrics = path / "metrics.jsonl"
        self.result = path / "result.json"
        self.configuration: Mapping[str, str] = {}
        self.config_hash = ""
        self.hooks: Mapping[str, str] = {}  # the bindings of hooks, which may change when a run goes on

    def create(self) -> None:
        """Makes the folder and sees that it can be written."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            probe = self.path / f".write-{os.getpid()}"
            probe.touch()
            probe.unlink()
        except OSError as error:
            raise disk_full(error, self.path) or ConfigurationError(
                f"the workdir `{self.path}` can't be written: {error.strerror or error}. Name another with "
                "`--workdir=DIR`, or change its permissions."
            ) from None

    def newest_name(self) -> str:
        """Returns what the newest checkpoint is called, read or not."""
        return max((path.name for path in self.checkpoints.glob("step-*")), default="none")

    def lock(self) -> None:
        """Keeps a second run out until this process ends."""
        self._lock = open(self.path / ".lock", "w")  # noqa: SIM115  # held open: closing it would unlock
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ConfigurationError(
                f"another run is writing to the workdir `{self.path}`: wait for it, or name another with "
                "`--workdir=DIR`."
            ) from None

    def read_result(self) -> dict[str, Any]:
        """Returns how the last run ended; empty if it didn't say."""
        return dict(json.loads(self.result.read_text())) if self.result.exists() else {}

    def write_result(self, *, step: int, exit_code: int, reason: str, evaluation: Mapping[str, float]) -> None:
        """Records how the run ended."""
        result = {"step": step, "exit_code": exit_code, "reason": reason, "evaluation": dict(evaluation)}
        temporary = self.result.with_name(f".{self.result.name}.{os.getpid()}.tmp")
        with room_for(self.result):
            try:
                temporary.write_text(json_text(result), encoding="utf-8")
                temporary.replace(self.result)
            finally:
                temporary.unlink(missing_ok=True)


def json_text(value: Mapping[str, Any]) -> str:
    """Returns the text of a JSON file."""
    return json.dumps(_finite(value), indent=2, allow_nan=False) + "\n"


def _finite(value: Any) -> Any:
    """Puts null for what isn't finite, for which JSON has no number, as in `metrics.jsonl`."""
    if isinstance(value, Mapping):
        return {key: _finite(x) for key, x in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value
