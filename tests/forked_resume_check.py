"""Makes `--mode=resume_check` fork the runs that it compares, if it is a fork of `tests.fork_server`."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from tests.commands import Done
from tests.forked_launch import Forks
from trainers.modes import resume_check


def begin() -> None:
    """Makes this process fork instead of starting processes."""
    resume_check.subprocess = SimpleNamespace(run=run)


def run(command: Sequence[str], *, env: dict[str, str], **_: Any) -> Done:
    """Returns what `subprocess.run` returns; the command's errors fit into a pipe."""
    process = Forks.Popen(command, env=env, preexec_fn=lambda: None, stdout=Forks.PIPE)
    stdout, stderr = process.stdout.read(), process.stderr.read()
    return Done(command, process.wait(), stdout.decode(), stderr.decode())
