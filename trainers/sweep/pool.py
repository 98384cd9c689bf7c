"""Process pool: runs jobs in parallel, passes signals on, and leaves no process behind."""

import contextlib
import dataclasses
import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from core.disk import space_for
from trainers.launch.processes import POLL_SECONDS, Signals, die_with


@dataclasses.dataclass(frozen=True)
class Job:
    """A command, and the file for its output."""

    name: str
    command: Sequence[str]
    log: Path


@dataclasses.dataclass
class _Started:
    job: Job
    process: "subprocess.Popen[bytes]"
    began: float
    stopping: bool = False


def run_jobs(
    next_job: Callable[[], Job | None],
    *,
    at_once: int,
    signals: Signals,
    ended: Callable[[Job, int, float], bool],
    stops: Callable[[Job], bool] = lambda job: False,
) -> None:
    """Runs jobs, at most `at_once` in parallel, until `next_job()` returns `None` and all have ended.

    It starts no further job after a signal. `ended(job, exit_code, seconds)` is called at the end of each job, and
    returns whether to continue. If it returns False, SIGTERM makes the running jobs save and end, and so it does for a
    job for which `stops(job)` returns True, which is asked while the job runs.
    """
    running: list[_Started] = []
    more = True  # `next_job` may have another
    over = False
    try:
        while True:
            while more and not over and len(running) < at_once and not signals.received:
                job = next_job()
                if job is not None:
                    running.append(_start(job))
                more = job is not None
            if not running:
                return
            time.sleep(POLL_SECONDS)
            for number in signals.new():
                for each in running:
                    each.process.send_signal(number)
            if signals.kill:
                _kill(running)
            for each in list(running):
                code = each.process.poll()
                if code is None:
                    if not each.stopping and stops(each.job):
                        each.stopping = True
                        each.process.send_signal(signal.SIGTERM)
                    continue
                running.remove(each)
                more = True
                if not ended(each.job, code, time.monotonic() - each.began) and not over:
                    over = True
                    for other in running:
                        other.process.send_signal(signal.SIGTERM)
    finally:
        _kill(running)


def _start(job: Job) -> _Started:
    parent = os.getpid()
    with space_for(job.log):
        job.log.parent.mkdir(parents=True, exist_ok=True)
        with job.log.open("ab") as log:
            process = subprocess.Popen(
                job.command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C reaches the sweep alone, which passes it on
                preexec_fn=lambda: die_with(parent),
            )
    return _Started(job, process, time.monotonic())


def _kill(running: Sequence[_Started]) -> None:
    """Kills the running jobs with their children."""
    for each in running:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(each.process.pid, signal.SIGKILL)
        each.process.wait()
