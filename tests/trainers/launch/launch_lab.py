"""Small programs as workers, so that how processes end together is shown without TensorFlow."""

import io
import os
import re
import sys
import textwrap
import time
from pathlib import Path

from trainers.launch.processes import Command
from trainers.launch.supervise import supervise

PATIENCE = 60.0  # a deadline that no healthy test reaches
HASTE = 0.5  # one that some test has to wait for
HANG = "time.sleep(100)"
KILL_SELF = "os.kill(os.getpid(), signal.SIGKILL)"


def program(text):
    """A worker that runs this; it finds its index in `sys.argv[1]` and the attempt (from 0) in `sys.argv[2]`."""
    head = "import os, signal, subprocess, sys, time\nindex, attempt = int(sys.argv[1]), int(sys.argv[2])\n"
    return head + textwrap.dedent(text)


def launched(*texts, max_restarts=0, deadline=PATIENCE, out=None, roster=None, led=False):
    """The exit code, both outputs, and how often workers with these programs (as many as a roster says) started.

    If `led`, the first is the chief of the second, a server, and of the others, its workers.
    """
    attempts = []

    def make_commands():
        attempts.append(len(attempts))
        python = [sys.executable, "-S", "-u", "-c"]
        return [
            Command(
                ("chief", "ps 0", "worker 0", "worker 1")[i] if led else f"worker {i}",
                [*python, program(text), str(i), str(attempts[-1])],
                dict(os.environ),
                follows=led and i > 0,
                spare=led and i > 1,
            )
            for i, text in enumerate(texts[: roster.count if roster else None])
        ]

    out, err = out or io.BytesIO(), io.BytesIO()
    code = supervise(make_commands, roster=roster, max_restarts=max_restarts, deadline=deadline, out=out, err=err)
    return code, out.getvalue().decode(), err.getvalue().decode(), len(attempts)


def alive(pid):
    """Whether this process runs; one that nobody has asked about yet is dead all the same."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"


def gone(pid):
    """Waits for it: a killed process needs a moment."""
    until = time.monotonic() + 30
    while alive(pid) and time.monotonic() < until:
        time.sleep(0.02)
    return not alive(pid)


def pids(out):
    """Of all workers that were started, in order."""
    return [
        int(pid) for line in out.splitlines() if line.startswith("started") for pid in re.findall(r"ss (\d+)", line)
    ]
