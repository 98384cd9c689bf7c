"""The folder of a run: what lies where, and who it belongs to."""

import datetime
import fcntl
import json
import math
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from core.errors import ConfigurationError


class Workdir:
    """Paths below one folder, and the small JSON files that say how a run was started and how it ended."""

    def __init__(self, path: Path):
        self.path = path
        self.checkpoints = path / "checkpoints"
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
            raise ConfigurationError(
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

    def write_configuration(self, *, given: str, operative: str) -> None:
        """Keeps the configuration as it was given and as it was used."""
        folder = self.path / "config"
        folder.mkdir(exist_ok=True)
        (folder / "given.gin").write_text(given)
        (folder / "operative.gin").write_text(operative)

    def write_run(self, devices: list[str]) -> None:
        """Records what ran where: versions, devices, revision, command."""
        from core.checkpoint.versions import versions  # with TensorFlow, which mustn't start before it has this folder

        run = {
            "started": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
            "command": [Path(sys.executable).name, *sys.argv],
            "versions": versions(),
            "devices": devices,
            "git": git_revision(),
            "config_hash": self.config_hash,
        }
        write_json(self.path / "run.json", run)

    def read_result(self) -> dict[str, Any]:
        """Returns how the last run ended; empty if it didn't say."""
        return dict(json.loads(self.result.read_text())) if self.result.exists() else {}

    def write_result(self, *, step: int, exit_code: int, reason: str, evaluation: Mapping[str, float]) -> None:
        """Records how the run ended."""
        result = {"step": step, "exit_code": exit_code, "reason": reason, "evaluation": dict(evaluation)}
        write_json(self.result, result)


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Writes whole or not at all."""
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    temporary.write_text(json.dumps(_finite(value), indent=2, allow_nan=False) + "\n")
    temporary.replace(path)


def _finite(value: Any) -> Any:
    """Puts null for what isn't finite, for which JSON has no number, as in `metrics.jsonl`."""
    if isinstance(value, Mapping):
        return {key: _finite(x) for key, x in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


def git_revision() -> str | None:
    """Returns the revision of the working directory's checkout, with `-dirty` if it was changed, or None."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, timeout=5, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return found.stdout.strip() or None
