"""Runs `supervise` in forks of a process without TensorFlow: forking the tests' own process of gigabytes is slow.

The server reads requests from its standard input, a socket: JSON, with the files that the launcher writes to. It
answers with two messages: the fork's pid when it has started, its exit code when it has ended.
"""

import json
import os
import socket
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from trainers.launch.elastic import Roster, Sharing
from trainers.launch.processes import Command, die_with
from trainers.launch.supervise import supervise

# Functions in workers' programs: `say` names, `hear` names, and `rest` until another one has ended or stopped.
HEAD = """
import os, signal, subprocess, sys, time
index, attempt, here = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
def say(name):
    with open(f"{here}/.{index}", "w") as file:
        file.write(str(os.getpid()))
    os.replace(f"{here}/.{index}", f"{here}/{name}")
def hear(name):
    while not os.path.exists(f"{here}/{name}"):
        time.sleep(0.005)
def rest(other):
    hear(f"{other}.{attempt}")
    pid = open(f"{here}/{other}.{attempt}").read()
    try:
        while open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[0] not in "ZXT":
            time.sleep(0.005)
    except OSError:
        pass
say(f"{index}.{attempt}")
"""
NAMES = ("chief", "ps 0", "worker 0", "worker 1")


class Told:
    """A stream that acts at given words: sends a signal, says a name, waits for the end of a worker."""

    def __init__(self, number: int, at: dict[str, list[Any]], here: Path):
        self.number, self.at, self.here = number, at, here

    def write(self, data: bytes) -> int:
        for words, (act, what) in self.at.items():
            if words.encode() not in data:
                continue
            if act == "signal":
                os.kill(os.getpid(), what)
            else:
                (self.here / what).touch()
            while act == "gone" and alive(int((self.here / "0.0").read_text())):
                time.sleep(0.005)
        left = memoryview(data)
        while left:
            left = left[os.write(self.number, left) :]
        return len(data)

    def flush(self) -> None:
        pass


def alive(pid: int) -> bool:
    """Tells whether this process runs; a zombie counts as dead."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"


def launch(texts: list[str], here: str, led: bool, at: dict[str, list[Any]], elastic: list[int], **how: Any) -> int:
    """Runs workers with these programs, as many as a roster of `elastic` says; returns their exit code."""
    workers, fewest = elastic or (0, 0)
    roster = Roster(workers, fewest=fewest, sharing=Sharing(64, 1)) if elastic else None
    attempts = Path(here) / "attempts"

    def make_commands() -> list[Command]:
        attempt = len(attempts.read_bytes()) if attempts.exists() else 0
        attempts.write_bytes(b"x" * (attempt + 1))
        python = [sys.executable, "-S", "-u", "-c"]
        return [
            Command(
                NAMES[i] if led else f"worker {i}",
                [*python, HEAD + text, str(i), str(attempt), here],
                dict(os.environ),
                follows=led and i > 0,
                spare=led and i > 1,
            )
            for i, text in enumerate(texts[: roster.count if roster else None])
        ]

    out, err = (Told(number, told, Path(here)) for number, told in ((1, at), (2, {})))
    return supervise(make_commands, roster=roster, out=out, err=err, **how)  # type: ignore[arg-type]


def serve(channel: socket.socket) -> None:
    """Answers requests until its input closes."""
    while True:
        data, files, _, _ = socket.recv_fds(channel, 1 << 18, 2)
        if not data:
            return
        server = os.getpid()
        if not (pid := os.fork()):
            code = 1
            try:
                die_with(server)
                for number, file in enumerate([os.open(os.devnull, os.O_RDONLY), *files]):
                    os.dup2(file, number)
                os.closerange(3, 64)  # also the channel, and the tests' ends of pipes
                code = launch(**json.loads(data))
            except BaseException:
                traceback.print_exc()
            os._exit(code)
        for file in files:
            os.close(file)
        channel.send(str(pid).encode())
        channel.send(str(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])).encode())


if __name__ == "__main__":
    die_with(os.getppid())
    serve(socket.socket(fileno=0))
