"""Runs `python -m trainers.main`, or `trainers.launch`, in forks of one process that has imported TensorFlow.

Importing TensorFlow takes 3.5 of the 3.9 CPU seconds of a refusal. A process may fork as long as TensorFlow has run no
operation, and so started no thread: the server only imports. A fork then acts as `python -m`, from `runpy` to the
interpreter's exit, so that its exit code, its streams and its signals are the command's.

The server reads requests (a line of JSON each) on stdin, and answers with two lines: the fork's process id when it has
started, its exit code when it has ended. It ends with the process that writes to it.
"""

import gc
import importlib
import json
import os
import runpy
import select
import signal
import sys
import warnings
from typing import Any


def serve() -> dict[str, Any]:
    """Answers requests; returns in each fork, with its request."""
    while line := os.read(0, 1 << 20):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # NumPy's threads, which restart in a fork
            pid = os.fork()
        if not pid:
            return json.loads(line)
        os.write(1, f"{pid}\n".encode())
        ended = os.pidfd_open(pid)
        if ended not in select.select([ended, 0], [], [])[0]:
            os.kill(pid, signal.SIGKILL)  # the parent has ended
            break
        os.close(ended)
        os.write(1, f"{os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])}\n".encode())
    os._exit(0)


def become(request: dict[str, Any]) -> None:
    """Makes this fork the process of the command.

    A request may name a module whose `begin` is called first with the given arguments: it can watch the process from
    within.
    """
    for name, value in request.get("variables", {}).items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    if before := request["before"]:
        importlib.import_module(before["module"]).begin(**before["arguments"])
    streams = {0: os.devnull, 1: request["stdout"], 2: request["stderr"]} if "stdout" in request else {}
    for number, path in streams.items():
        file = os.open(path, os.O_WRONLY if number else os.O_RDONLY)
        os.dup2(file, number)
        os.close(file)
    os.chdir(request["cwd"])
    sys.path[0] = os.getcwd()
    sys.argv[1:] = request["arguments"]


if __name__ == "__main__":
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "1"  # as the command has it, which sets it before it imports TensorFlow
    from absl import app
    from tensorboard.summary.writer import record_writer  # noqa: F401

    import trainers.session  # noqa: F401
    from tests.forwarded import listen

    # In the command `app.run` comes first, and importing TensorFlow then lists devices, about which C++ writes to
    # stderr. Here the import came first, and `app.run` does it.
    app._init_callbacks.clear()
    del os.environ["TF_CPP_MIN_LOG_LEVEL"]
    gc.freeze()  # a collection in a fork would copy every page
    request = serve()
    become(request)
    if request["command"] == "tests.forwarded":
        become(request := listen(*request["arguments"]))
    runpy.run_module(request["command"], run_name="__main__", alter_sys=True)
