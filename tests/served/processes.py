"""Processes forked from `tests.fork_server`, which has imported TensorFlow, that outlive their request."""

import json
import os
import runpy
import signal
import socket
import sys
import tempfile
from importlib import import_module

from tests.commands import CHECKOUT, fork_server
from tests.fork_server import become


def started(module):
    """Runs `main` of a module in a new process; returns a file connected to its stdin and stdout.

    The process ends when the file is closed, at the latest with this process.
    """
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as door:
        arguments = {"module": module, "address": f"{folder}/door"}
        door.bind(arguments["address"])
        door.listen()
        before = {"module": "tests.served.processes", "arguments": arguments}
        done = fork_server().run(cwd=CHECKOUT, timeout=60.0, before=before)
        assert done.returncode == 0, done.stderr
        connection, _ = door.accept()
    return connection.makefile("rwb", 0)


def begin(module, address):
    """Becomes that process, while the requested fork ends."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(address)
        if os.fork():
            os._exit(0)
        os.dup2(connection.fileno(), 0)
        os.dup2(connection.fileno(), 1)
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "1"
    import_module(module).main()
    sys.exit()


def main():
    """Runs the command in forks, as `tests.fork_server` does, but any number in parallel.

    It reads requests (a line of JSON each), and answers each with the fork's pid, without waiting for its end.
    """
    become(_serve())
    runpy.run_module("trainers.main", run_name="__main__", alter_sys=True)


def _serve():
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while line := os.read(0, 1 << 16):
        pid = os.fork()
        if not pid:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            return json.loads(line)
        os.write(1, f"{pid}\n".encode())
    os._exit(0)
