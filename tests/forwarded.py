"""Runs a shell's `python` in forks of the fork server, which has imported TensorFlow.

    python tests/forwarded.py NAME -m trainers.main --gin_file=configs/digits_mlp.gin

does the same as `python -m trainers.main ...`, with its streams, variables, signals and exit code, if a fork of the
server listens at the abstract socket NAME. Importing TensorFlow takes most of the processor time of a page's commands.
"""

import contextlib
import ctypes
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any, NoReturn

HEARD = (signal.SIGTERM, signal.SIGINT)


def listen(name: str) -> dict[str, Any]:
    """Forks at each request; returns in each fork, with the arguments of `tests.fork_server.become`."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # it ends with its parent
    signal.signal(signal.SIGTERM, end)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"\0{name}")
        listener.listen()
        print("listening", flush=True)
        while True:
            connection, _ = listener.accept()
            reap()
            if not os.fork():
                break
            connection.close()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    data, files, *_ = socket.recv_fds(connection, 1 << 20, 3)
    if pid := os.fork():
        for file in files:
            os.close(file)  # a pipe ends with the command
        connection.sendall(f"{pid}\n".encode())
        connection.sendall(f"{os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])}\n".encode())
        os._exit(0)
    connection.close()
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    request = json.loads(data)
    arguments, variables = request["arguments"], request["environment"]
    os.chdir(request["cwd"])
    command = module_of(arguments)
    if command is None or settings(variables) != settings(dict(os.environ)):
        os.execve(sys.executable, [sys.executable, *arguments], variables)
    os.environ.clear()
    os.environ.update(variables)
    module, rest = command
    sys.modules.pop(module, None)
    return {"command": module, "arguments": rest, "cwd": request["cwd"], "before": cheaper(module, rest, name)}


def reap() -> None:
    """Waits for ended children; their processor time then counts for this process."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def end(*_: Any) -> NoReturn:
    """Ends the listening process."""
    time.sleep(0.05)  # a child that has answered is about to end
    reap()
    os._exit(0)


def module_of(arguments: Sequence[str]) -> tuple[str, Sequence[str]] | None:
    """Returns the module that the words name, or the script in the working directory, and its arguments."""
    if arguments[:1] == ["-m"]:
        return arguments[1], arguments[2:]
    script = re.fullmatch(r"(\w+)\.py", arguments[0]) if arguments else None
    return (script[1], arguments[1:]) if script else None


def cheaper(module: str, arguments: Sequence[str], name: str) -> dict[str, Any] | None:
    """Returns what makes this command cheaper, to be called first: it forks, or measures for a shorter time."""
    if module in ("trainers.launch", "trainers.sweep"):
        return {"module": "tests.forked_launch", "arguments": {}}
    if {"--mode=resume_check", "--mode=export"} & {*arguments}:
        return {"module": "tests.forwarded", "arguments": {"name": name}}
    if {"--mode=diagnose", "--mode=tune", "--mode=dry_run"} & {*arguments}:
        return {"module": "tests.short_measures", "arguments": {}}
    if "--gin_file=fid.gin" in arguments or module == "random_weights":
        return {"module": "tests.small_inception", "arguments": {}}
    return None


def begin(name: str) -> None:
    """Makes this process run training, and what computes with an export, in forks as well."""
    real = subprocess.run

    def run(command: Sequence[str], *, env: dict[str, str] | None = None, **settings: Any) -> Any:
        words = command[1:]
        if words[0] == "-I" and words[1].endswith("trainers/export/alone.py"):
            words = ["-m", "trainers.export.alone", *words[2:]]
        if words[0] != "-m":
            return real(command, env=env, **settings)
        env = dict(os.environ if env is None else env)
        env.pop("TF_CPP_MIN_LOG_LEVEL", None)  # TensorFlow's import needed it, which forks have behind them
        return real([sys.executable, __file__, name, *words], env=env, **settings)

    subprocess.run = run  # type: ignore[assignment]


def settings(variables: dict[str, str]) -> dict[str, str]:
    """Returns the variables that matter while Python starts and TensorFlow is imported."""
    kinds = ("TF_", "XLA_", "PYTHON", "LANG", "LC_")
    return {key: x for key, x in variables.items() if key.startswith(kinds) and key != "TF_CONFIG"}


def main() -> int:
    """Sends the command to the listening fork, and ends as it does."""
    _, name, *arguments = sys.argv
    request = {"arguments": arguments, "cwd": os.getcwd(), "environment": dict(os.environ)}
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(f"\0{name}")
        socket.send_fds(connection, [json.dumps(request).encode()], [0, 1, 2])
        with connection.makefile() as answers:
            pid = int(answers.readline())
            for number in HEARD:
                signal.signal(number, lambda number, _: os.kill(pid, number))
            code = int(answers.readline())
    for number in HEARD:
        signal.signal(number, signal.SIG_DFL)
    if code < 0:
        os.kill(os.getpid(), -code)
    return code


if __name__ == "__main__":
    sys.exit(main())
