"""How a run was started: its configuration and what it ran with, kept in the workdir once the start has succeeded.

`config/history/0002-step-000001000/` holds the configuration that went on from step 1000, the second of this run.
"""

import datetime
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from core.checkpoint.versions import versions
from core.disk import space_for, unfinished_folder, write_whole
from trainers.workdir import Workdir, json_text

_ENTRY = re.compile(r"(\d{4,})-step-\d{9,}")


def record_start(workdir: Workdir, *, step: int, given: str | None, operative: str, devices: Sequence[str]) -> None:
    """Records the configuration, versions, devices, revision and command that a run goes on with from `step`.

    `given` is what its gin files say together; what is trained by calls of Python has none.
    """
    run = {
        "started": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "command": [Path(sys.executable).name, *sys.argv],
        "versions": versions(),
        "devices": list(devices),
        "git": git_revision(),
        "config_hash": workdir.config_hash,
    }
    texts = {"given.gin": given, "operative.gin": operative}
    configuration = {name: text for name, text in texts.items() if text is not None}
    with space_for(workdir.configurations):
        history = workdir.configurations / "history"
        before = {name: workdir.configurations / name for name in configuration}
        if not history.exists() and all(path.is_file() for path in before.values()):
            # The run began before there was a history: what it began with is its first entry.
            _add_to_history(history, 0, {name: path.read_text("utf-8") for name, path in before.items()})
        _add_to_history(history, step, configuration)
    files = {workdir.configurations / name: text for name, text in configuration.items()}
    files[workdir.path / "run.json"] = json_text(run)
    write_whole({path: text.encode() for path, text in files.items()})


def _add_to_history(history: Path, step: int, configuration: Mapping[str, str]) -> None:
    """Adds an entry, unless the last one's values are the same."""
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
    """Returns the revision of the working directory's checkout, with `-dirty` if it was changed, or None."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        found = subprocess.run(command, capture_output=True, encoding="utf-8", errors="replace", timeout=5, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return found.stdout.strip() or None
