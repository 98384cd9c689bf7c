"""Runs the command in forks of one process, as `tests.fork_server` does, but as many at a time as are asked for.

It reads requests (a line of JSON each) on stdin, and answers each with the id of the fork, whose end nobody waits for.
"""

import json
import os
import runpy
import signal

import trainers.session  # noqa: F401
from tests.fork_server import become


def serve():
    """Answers requests; returns in each fork, with the request that it is for."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while line := os.read(0, 1 << 16):
        pid = os.fork()
        if not pid:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            return json.loads(line)
        os.write(1, f"{pid}\n".encode())
    os._exit(0)


if __name__ == "__main__":
    become(serve())
    runpy.run_module("trainers.main", run_name="__main__", alter_sys=True)
