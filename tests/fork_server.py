"""Runs `python -m trainers.main`, or `trainers.launch`, in forks of one process, which has imported TensorFlow for all.

Importing TensorFlow takes 3.5 of the 3.9 CPU seconds of a refusal. A process may fork as long as TensorFlow has run no
operation, and so started none of its threads: the server only imports. A fork then does what `python -m` does, from
`runpy` to the interpreter's own way out, so that its exit code, its streams and its signals are those of the command.

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
    """Answers requests; returns in each fork, with the request that it is for."""
    while line := os.read(0, 1 << 20):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # NumPy's threads, which make themselves anew in a fork
            pid = os.fork()
        if not pid:
            return json.loads(line)
        os.write(1, f"{pid}\n".encode())
        ended = os.pidfd_open(pid)
        if ended not in select.select([ended, 0], [], [])[0]:
            os.kill(pid, signal.SIGKILL)  # whoever asked for the fork is gone
            break
        os.close(ended)
        os.write(1, f"{os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])}\n".encode())
    os._exit(0)


def become(request: dict[str, Any]) -> None:
    """Makes this fork the process that the command would have been started as.

    A request may name a module whose `begin` is called before, with the arguments that it gives: it can watch the
    process from within.
    """
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

    import trainers.session  # noqa: F401
    from tests.forwarded import listen

    # What the import of TensorFlow leaves for `app.run` to do, it does itself where `app.run` came first, as in the
    # command: it lists devices, and C++ tells of it on stderr.
    app._init_callbacks.clear()
    del os.environ["TF_CPP_MIN_LOG_LEVEL"]
    gc.freeze()  # a collection in a fork would copy every page
    request = serve()
    become(request)
    if request["command"] == "tests.forwarded":
        become(request := listen(*request["arguments"]))
    runpy.run_module(request["command"], run_name="__main__", alter_sys=True)
