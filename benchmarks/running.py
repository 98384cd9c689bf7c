"""Trainings with the real commands, observed from outside through their metric lines."""

import contextlib
import functools
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from trainers.launch.processes import die_with

CHECKOUT = Path(__file__).resolve().parent.parent
WIDTH = 256  # of the rows and of the matrix of `benchmarks/work.py` until the first line; any other comes sooner
LINE_SECONDS = 300.0  # of the first start; any other line comes sooner
POLL_SECONDS = 0.002


class Running:
    """A run of `benchmarks/work.gin` that continues until it is ended."""

    def __init__(self, process: "subprocess.Popen[bytes]", folder: Path):
        self.process, self._folder = process, folder

    def pid(self, name: str) -> int:
        """Returns the pid of the process that `trainers.launch` gave this name."""
        found = re.search(rf"{name} \(process (\d+)\)", self.output())
        if found is None:
            raise SystemExit(f"error: `{name}` isn't among the processes of this run:\n{self.output()}")
        return int(found[1])

    def output(self) -> str:
        """Returns what the command has printed."""
        return (self._folder / "output").read_text()

    def speed(self, seconds: float) -> float:
        """Returns steps a second, measured over `seconds` or one metric line, whichever is longer."""
        step, began = self._next_line()
        while True:
            last, now = self._next_line()
            if now - began >= seconds:
                return (last - step) / (now - began)

    def cpu_seconds(self, seconds: float) -> float:
        """Returns a step's CPU seconds: other processes on the same cores don't lengthen them."""
        first, began = self._next_line()
        spent = -self._cpu_seconds()
        while True:
            last, now = self._next_line()
            if now - began >= seconds:
                return (spent + self._cpu_seconds()) / (last - first)

    def step_seconds(self) -> list[float]:
        """Returns the time of a step in each metric line so far."""
        return [json.loads(line)["step_seconds"] for line in self._lines()]

    def _cpu_seconds(self) -> float:
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")  # user's and system's

    def _next_line(self) -> tuple[int, float]:
        """Waits for another metric line; returns its step and time."""
        before = self._lines()
        until = time.perf_counter() + LINE_SECONDS
        while len(lines := self._lines()) == len(before):
            if self.process.poll() is not None or time.perf_counter() > until:
                raise SystemExit(f"error: the run writes no metric line:\n{self.output()}")
            time.sleep(POLL_SECONDS)
        return json.loads(lines[-1])["step"], time.perf_counter()

    def _lines(self) -> list[str]:
        path = self._folder / "run" / "metrics.jsonl"
        return path.read_text().split("\n")[:-1] if path.exists() else []  # whole ones


@contextlib.contextmanager
def running(launch: Sequence[str], settings: Mapping[str, Any], *, gin_files: Sequence[str] = ()) -> Iterator[Running]:
    """Starts `trainers.launch` with these flags, or `trainers.main` without any; ends it and its processes afterwards.

    Each process computes in one thread, so that two processes don't compete for two cores.
    """
    files = ["benchmarks/work.gin", *gin_files]
    training = [
        *(f"--gin_file={CHECKOUT / name}" for name in files),
        *(f"--gin_param={name} = {value!r}" for name, value in settings.items()),
        "--workdir=run",
    ]
    command = ["-m", "trainers.launch", *launch, "--", *training] if launch else ["-m", "trainers.main", *training]
    environment = {**os.environ, "PYTHONPATH": str(CHECKOUT), "TF_NUM_INTRAOP_THREADS": "1"}
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        with (folder / "output").open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, *command],
                cwd=folder,
                env=environment,
                stdout=output,
                stderr=subprocess.STDOUT,
                # This one may be interrupted before it has registered the other.
                preexec_fn=functools.partial(die_with, os.getpid()),
            )
        try:
            yield Running(process, folder)
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
