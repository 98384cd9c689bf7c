"""Measures on this machine what the model is fitted to, and what it is then checked against.

All of it are real trainings of `benchmarks/work.gin`: in two processes that know nothing of each other ("apart"), and
in two that `trainers.launch` has joined. What one costs more than the other is what talking costs.
"""

import json
import statistics
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.machine import load, machine
from benchmarks.running import WIDTH, running

ROWS = 512  # of a worker
SECONDS = 3.0  # that a speed is watched
MULTI_WORKER = "configs/runtime/multi_worker.gin"
MESH = "configs/runtime/mesh.gin"
PARAMETER_SERVER = "configs/runtime/parameter_server.gin"

Measured = dict[str, Any]


class Size(NamedTuple):
    """How much a step computes, and how many numbers it trains beside."""

    products: int
    ballast: int

    @property
    def gradients(self) -> int:
        """Returns bytes."""
        return 4 * (WIDTH * WIDTH + max(1, self.ballast))


FITTED = (Size(1, 0), Size(1, 1 << 18), Size(1, 1 << 20), Size(1, 1 << 22))
CHECKED = (Size(3, 0), Size(30, 0), Size(30, 1 << 20), Size(100, 0))
UNEQUAL = Size(30, 0)
CUT = (Size(3, 0), Size(30, 0))
PUSHED = Size(1, 0)


def apart(size: Size) -> float:
    """Returns the seconds of a step of two processes, each with a worker's share."""
    with ExitStack() as both:
        runs = [both.enter_context(running([], settings(size, ROWS))) for _ in range(2)]
        for run in runs:
            run.speed(0.0)  # both are up
        return statistics.mean(1 / run.speed(SECONDS) for run in runs)


def replicas(size: Size) -> float:
    """Returns the seconds of a synchronous step of two workers."""
    return _launched(["--workers=2"], settings(size, 2 * ROWS), MULTI_WORKER)


def mesh(size: Size) -> float:
    """Returns the seconds of a step of one worker's rows, whose matrix is cut over two workers by its rows."""
    cut = {"mesh.batch": 1, "mesh.model": 2, "mesh.layouts": [("w", "model,-")]}
    return _launched(["--workers=2"], {**settings(size, ROWS), **cut}, MESH)


def one_asynchronous(size: Size) -> float:
    """Returns the seconds of a step of one worker that pulls from a server and pushes to it."""
    return _launched(["--workers=1", "--ps=1"], settings(size, ROWS), PARAMETER_SERVER)


def two_asynchronous(size: Size) -> float:
    """Returns the seconds from one step to the next of two such workers."""
    return _launched(["--workers=2", "--ps=1"], settings(size, ROWS), PARAMETER_SERVER)


def unequal(size: Size) -> float:
    """Returns the standard deviation of the times of steps in one of two processes, as a part of their mean."""
    every_step = {**settings(size, ROWS), "Trainer.log_every": 1}
    with running([], every_step), running([], every_step) as run:
        run.speed(0.0)
        run.speed(2 * SECONDS)
        times = run.step_seconds()[10:]  # without the first, while caches are cold
    return statistics.stdev(times) / statistics.mean(times)


HOW: dict[str, Callable[[Size], float]] = {
    "apart": apart,
    "replicas": replicas,
    "mesh": mesh,
    "one asynchronous": one_asynchronous,
    "two asynchronous": two_asynchronous,
    "unequal": unequal,
}
POINTS = (
    *((how, size) for size in (*FITTED, *CHECKED) for how in ("apart", "replicas")),
    *(("mesh", size) for size in CUT),
    ("one asynchronous", PUSHED),
    ("two asynchronous", PUSHED),
    ("unequal", UNEQUAL),
)


def name(how: str, size: Size) -> str:
    """Returns how a measurement is called in the file."""
    return f"{how}, {size.products} products, {size.ballast} more numbers"


def measure(path: Path, *, rounds: int) -> Measured:
    """Returns `rounds` values of everything; one that was interrupted goes on from `path`."""
    measured: Measured = json.loads(path.read_text()) if path.exists() else {"machine": machine(), "points": {}}
    for i in range(rounds):
        for how, size in POINTS:
            values = measured["points"].setdefault(name(how, size), [])
            if len(values) > i:
                continue
            values.append(HOW[how](size))
            measured["machine"]["highest_load"] = max(measured["machine"]["highest_load"], load())
            path.write_text(json.dumps(measured, indent=1) + "\n")
            print(f"round {i + 1}: {name(how, size)}: {values[-1]:.4g}", flush=True)
    return measured


def settings(size: Size, rows: int) -> dict[str, Any]:
    """Returns what a run of such steps binds; a line of metrics every tenth of a second or so."""
    return {
        "Work.products": size.products,
        "Work.ballast": size.ballast,
        "Trainer.global_batch_size": rows,
        "Trainer.log_every": max(1, 100 // size.products),
    }


def _launched(launch: list[str], bound: dict[str, Any], gin_file: str) -> float:
    with running(launch, bound, gin_files=[gin_file]) as run:
        run.speed(0.0)
        return 1 / run.speed(SECONDS)
