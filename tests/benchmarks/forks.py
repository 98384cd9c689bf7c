"""Stands for `subprocess` in `benchmarks.running`: its commands run in forks, which import no TensorFlow."""

import contextlib
import os
import signal
import subprocess
import sys

from tests.commands import CHECKOUT, fork_server


def begin(*, launches):
    """Makes this fork of `tests.fork_server` find the benchmarks, compute in one thread, and fork if it launches."""
    sys.path.append(str(CHECKOUT))
    os.environ["TF_NUM_INTRAOP_THREADS"] = "1"
    if launches:
        from tests import forked_launch

        forked_launch.begin()


class Popen:
    """A fork that has become `python -m` and a module; `trainers.launch` forks its processes as well."""

    def __init__(self, command, *, cwd, **_):
        module, *words = command[2:]  # after the interpreter and `-m`
        self.returncode, errors = None, cwd / "errors"
        errors.touch()
        before = {"module": __name__, "arguments": {"launches": module == "trainers.launch"}}
        streams = {"stdout": str(cwd / "output"), "stderr": str(errors)}
        self.pid = fork_server().begin(*words, cwd=cwd, command=module, before=before, **streams)

    def poll(self):
        with contextlib.suppress(TimeoutError):
            self.wait(0.0)
        return self.returncode

    def wait(self, timeout=None):
        if self.returncode is None:
            self.returncode = fork_server().answer(timeout)

    def send_signal(self, number):
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self):
        self.send_signal(signal.SIGKILL)


STDOUT, TimeoutExpired = subprocess.STDOUT, TimeoutError
