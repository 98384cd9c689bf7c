"""Small programs as workers, which show without TensorFlow how processes end together."""

import functools
import json
import os
import re
import select
import socket
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path

from tests.commands import CHECKOUT, environment, fork_server
from tests.trainers.launch.launcher import alive

PATIENCE = 60.0  # a deadline that no healthy test reaches
HASTE = 0.2  # one that some test has to wait for, and that only those have to keep who break it
SOON = 2.0  # one that some test has to wait for, and that healthy workers keep on a busy machine
HANG = "time.sleep(100)"
KILL_SELF = "os.kill(os.getpid(), signal.SIGKILL)"
STOP_SELF = "os.kill(os.getpid(), signal.SIGSTOP)"


PLANTED = """
import os
import resource
import signal
import time

import gin
import tensorflow as tf

from core.cluster import is_chief, joined
from trainers.hooks import Hook
{outside}

@gin.configurable
class Planted(Hook):
    def __call__(self, run):
        {body}
"""


def planted(folder, body, *, every, outside="", settings=()):
    """Writes a hook whose body is this line, called that often; returns the flag of its gin file."""
    (folder / "planted.py").write_text(PLANTED.format(body=body, outside=outside))
    bound = ["import planted", "Trainer.hooks = [@Planted()]", f"Planted.every = {every}", *settings, ""]
    (folder / "planted.gin").write_text("\n".join(bound))
    return "--gin_file=planted.gin"


class Server:
    """A process of `tests.trainers.launch.launcher`, started at the first launch and ended with the test runner."""

    def __init__(self):
        self.channel, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.channel.settimeout(2 * PATIENCE)
        command = [sys.executable, "-m", "tests.trainers.launch.launcher"]
        self.process = subprocess.Popen(command, cwd=CHECKOUT, env=environment(), stdin=other)
        other.close()

    def begin(self, out, err, **request):
        """Starts a launcher that writes to these files; returns its pid. The next `answer` is its exit code."""
        socket.send_fds(self.channel, [json.dumps(request).encode()], [out, err])
        return self.answer()

    def answer(self):
        return int(self.channel.recv(100))


server = functools.cache(Server)


def launched(*texts, max_restarts=0, deadline=PATIENCE, at=None, elastic=(), led=False):
    """Returns the exit code, both outputs, and the starts of workers with these programs (as many as a roster says).

    If `led`, the first is the chief of the second, a server, and of the others, its workers. `at` maps words of the
    launcher's output to actions.
    """
    programs = [textwrap.dedent(text) for text in texts]
    with tempfile.TemporaryDirectory() as here, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        how = {"led": led, "at": at or {}, "elastic": elastic, "max_restarts": max_restarts, "deadline": deadline}
        server().begin(out.fileno(), err.fileno(), texts=programs, here=here, **how)
        code = server().answer()
        said = []
        for file in (out, err):
            file.seek(0)
            said.append(file.read().decode())
        return code, *said, len((Path(here) / "attempts").read_bytes())


class Launcher:
    """A running launcher of these programs, whose output is read line by line."""

    def __init__(self, *texts, deadline):
        self.here = tempfile.TemporaryDirectory()
        (out, self.out), (err, self.err) = os.pipe(), os.pipe()
        self.stdout, self.stderr = os.fdopen(out), os.fdopen(err)
        how = {"led": False, "at": {}, "elastic": (), "max_restarts": 3, "deadline": deadline, "here": self.here.name}
        self.pid = server().begin(self.out, self.err, texts=[textwrap.dedent(text) for text in texts], **how)
        self.returncode = None
        os.close(self.out)
        os.close(self.err)

    def send_signal(self, number):
        os.kill(self.pid, number)

    def wait(self):
        self.returncode = server().answer() if self.returncode is None else self.returncode
        return self.returncode

    def communicate(self):
        """Returns the rest of both outputs, once it has ended."""
        said = [stream.read() if not stream.closed else "" for stream in (self.stdout, self.stderr)]
        self.wait()
        return said

    def end(self):
        if self.returncode is None:
            self.send_signal(9)
            self.wait()
        self.stdout.close()
        self.stderr.close()
        self.here.cleanup()


class Forked:
    """`python -m trainers.launch --workers=2` in a fork that forks its workers, once it has saved something."""

    def __init__(self, cwd, *flags):
        from tests import ports

        self.out, self.err = cwd / "stdout", cwd / "stderr"
        self.out.touch()
        self.err.touch()
        forks = {"command": "trainers.launch", "before": {"module": "tests.forked_launch", "arguments": {}}}
        words = [*ports.flags(), "--workers=2", *flags]
        self.pid = fork_server().begin(*words, cwd=cwd, stdout=str(self.out), stderr=str(self.err), **forks)
        self.ended, self.returncode = os.pidfd_open(self.pid), None
        until = time.monotonic() + 2 * PATIENCE
        while not list((cwd / "run" / "checkpoints").glob("step-*")):
            assert not select.select([self.ended], [], [], 0.05)[0], self.said()
            assert time.monotonic() < until
        self.workers = pids(self.out.read_text())

    def terminate(self):
        os.kill(self.pid, 15)

    def said(self):
        return self.out.read_text() + self.err.read_text()

    def communicate(self, timeout):
        """Returns its output on both streams, once it has ended."""
        try:
            self.returncode = fork_server().answer(timeout)
        except TimeoutError:
            os.kill(self.pid, 9)
            fork_server().answer()
            raise
        finally:
            os.close(self.ended)
        return self.said(), ""


def gone(pid):
    """Waits for its end: a killed process needs a moment."""
    until = time.monotonic() + PATIENCE
    while alive(pid) and time.monotonic() < until:
        time.sleep(0.01)
    return not alive(pid)


def pids(out):
    """Returns the pids of all started workers, in order."""
    return [
        int(pid) for line in out.splitlines() if line.startswith("started") for pid in re.findall(r"ss (\d+)", line)
    ]


def begin(**variables):
    """Sets variables in a fork of `tests.fork_server`."""
    os.environ.update(variables)
