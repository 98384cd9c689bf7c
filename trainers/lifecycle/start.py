"""Starts a run: locks the workdir, refuses another run's workdir, and records configuration and versions.

`config/history/0002-step-000001000/` holds the run's second configuration, with which it resumed at step 1000.
"""

import dataclasses
import datetime
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf

from core import checkpoint
from core.checkpoint.versions import versions
from core.cluster import is_chief
from core.cluster.topology import cluster_from_environment
from core.disk import space_for, unfinished_folder, write_whole
from core.errors import ConfigurationError
from trainers.gin_audit.identity import config_hash, difference
from trainers.loop.input import SOURCE
from trainers.workdir import Workdir, json_text


@dataclasses.dataclass(frozen=True)
class Configured:
    """A run's configuration, from gin files or from Python calls.

    Runs with equal `identity` are the same run. `hooks` and `source` describe the hooks and the training source.
    `read` converts the identity stored in a checkpoint's manifest. `given` and `operative` return the texts of
    `given.gin` and `operative.gin`, once all objects are made.
    """

    identity: Mapping[str, str]
    hooks: Mapping[str, str]
    read: Callable[[Mapping[str, str]], Mapping[str, str]]
    given: Callable[[], str | None]
    operative: Callable[[], str]
    note: Callable[[Mapping[str, str]], str]  # goes below the table of changes
    remedy: str  # for a folder that holds another run
    source: Mapping[str, str] = dataclasses.field(default_factory=dict)
    precision: str | Mapping[str, str] = "float32"  # `Trainer.precision`


class Start:
    """Starts or resumes a run in a folder."""

    def __init__(
        self, workdir: Workdir, configured: Configured, *, allow_change: bool = False, restart_optimizer: bool = False
    ):
        self.workdir, self.configured, self._allow_change = workdir, configured, allow_change
        self.restart_optimizer = restart_optimizer
        self.began = False  # True once the first chunk of steps is traced

    def claim(self) -> checkpoint.Manifest | None:
        """Locks the workdir and returns its newest checkpoint. A changed configuration is an error unless allowed."""
        own, found = self.configured.identity, newest_checkpoint(self.workdir)
        self.workdir.create()
        if is_chief():
            self.workdir.lock()
        before = own if found is None else self._identity_of(found)
        old, new = self._sources_of(found)
        if before != own or old != new:
            changes = f"{difference({**before, **old}, {**own, **new})}{self.configured.note(before)}"
            if not self._allow_change:
                raise ConfigurationError(
                    f"the workdir `{self.workdir.named}` holds a run of another configuration:\n{changes}\n"
                    f"{self.configured.remedy}"
                )
            print(f"the configuration has changed, as `--allow_config_change` allows:\n{changes}", flush=True)
        self.workdir.configuration, self.workdir.config_hash = own, config_hash(own)
        self.workdir.hooks = self.configured.hooks
        return found

    def _identity_of(self, found: checkpoint.Manifest) -> Mapping[str, str]:
        saved: Any = found.extra.get("configuration")
        if isinstance(saved, dict) and all(isinstance(value, str) for value in saved.values()):
            return self.configured.read(saved)
        if not self._allow_change:
            raise ConfigurationError(
                f"checkpoint `{found.path}` doesn't record its configuration: a custom loop saved it. "
                f"{self.configured.remedy}"
            )
        return self.configured.identity

    def _sources_of(self, found: checkpoint.Manifest | None) -> tuple[dict[str, str], dict[str, str]]:
        """Returns two dicts for a table of changes: the training source of checkpoint `found`, and that of this run."""
        saved: Any = found.extra.get(SOURCE) if found else None
        known = saved if isinstance(saved, dict) else self.configured.source  # older versions don't record it
        old, new = (
            {f"{key} of the source": str(x) for key, x in one.items()} for one in (known, self.configured.source)
        )
        return old, new

    def record(self, step: int) -> None:
        """Records the configuration that starts at `step`, once the start has succeeded."""
        self.began = True
        if is_chief():
            self.workdir.result.unlink(missing_ok=True)  # the result of an ended run, which resumes now
            record_start(
                self.workdir,
                step=step,
                given=self.configured.given(),
                operative=self.configured.operative(),
                devices=[device.name for device in tf.config.list_logical_devices()],
                precision=self.configured.precision,
            )


def record_failed_start(workdir: Workdir, *, exit_code: int, reason: str) -> None:
    """Records why a start failed, unless the folder has the result of a run that began."""
    cluster = cluster_from_environment()  # read here, because this process may not have joined it
    if cluster is None or cluster.is_chief:
        workdir.write_failed_start(exit_code=exit_code, reason=reason)


def newest_checkpoint(workdir: Workdir, up_to: int | None = None) -> checkpoint.Manifest | None:
    """Returns the newest complete checkpoint of the workdir, at most at step `up_to`."""

    def warn(text: str) -> None:
        print(f"Warning: {text}", flush=True)

    return checkpoint.newest(workdir.checkpoints, warn=warn, up_to=up_to)


_ENTRY = re.compile(r"(\d{4,})-step-\d{9,}")


def record_start(
    workdir: Workdir,
    *,
    step: int,
    given: str | None,
    operative: str,
    devices: Sequence[str],
    precision: str | Mapping[str, str] = "float32",
) -> None:
    """Records the configuration, versions, devices, precision, revision and command of a start at `step`.

    `given` is the text of all gin files together. A run trained by Python calls has none.
    """
    run = {
        "started": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "command": [Path(sys.executable).name, *sys.argv],
        "versions": versions(),
        "devices": list(devices),
        "precision": precision if isinstance(precision, str) else dict(precision),
        "git": git_revision(),
        "config_hash": workdir.config_hash,
    }
    texts = {"given.gin": given, "operative.gin": operative}
    configuration = {name: text for name, text in texts.items() if text is not None}
    with space_for(workdir.configurations):
        history = workdir.configurations / "history"
        before = {name: workdir.configurations / name for name in configuration}
        if not history.exists() and all(path.is_file() for path in before.values()):
            # The run is older than the history: its first configuration becomes the first entry.
            _add_to_history(history, 0, {name: path.read_text("utf-8") for name, path in before.items()})
        _add_to_history(history, step, configuration)
    files = {workdir.configurations / name: text for name, text in configuration.items()}
    files[workdir.path / "run.json"] = json_text(run)
    write_whole({path: text.encode() for path, text in files.items()})


def _add_to_history(history: Path, step: int, configuration: Mapping[str, str]) -> None:
    """Adds a folder with the texts in `configuration` to `history`, if `operative.gin` differs from the newest."""
    history.mkdir(parents=True, exist_ok=True)
    entries = sorted((int(found[1]), path) for path in history.iterdir() if (found := _ENTRY.fullmatch(path.name)))
    number, last = entries[-1] if entries else (0, history)
    operative = last / "operative.gin"
    if operative.is_file() and operative.read_bytes() == configuration["operative.gin"].encode():
        return
    temporary = unfinished_folder(history)
    try:
        temporary.mkdir()
        for name, text in configuration.items():
            (temporary / name).write_text(text, encoding="utf-8")
        temporary.rename(history / f"{number + 1:04d}-step-{step:09d}")
    except OSError:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def git_revision() -> str | None:
    """Returns the git commit of the working directory, with `-dirty` if files have changed, or None."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        found = subprocess.run(command, capture_output=True, encoding="utf-8", errors="replace", timeout=5, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return found.stdout.strip() or None
