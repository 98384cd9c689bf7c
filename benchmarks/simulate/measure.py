"""Measures on this machine the runs that fit and check the model.

All of them train `benchmarks/work.gin`: two independent processes ("apart"), and two that `trainers.launch` joins. The
difference is the cost of communication.
"""

import json
import statistics
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.machine import load, machine
from benchmarks.running import WIDTH, running

ROWS = 512  # to observe a worker's speed
SECONDS = 3.0  # that a speed is watched
MULTI_WORKER = "configs/runtime/multi_worker.gin"
MESH = "configs/runtime/mesh.gin"
PARAMETER_SERVER = "configs/runtime/parameter_server.gin"

Measured = dict[str, Any]


class Size(NamedTuple):
    """The number of matrix products in a step, and of further numbers that it trains."""

    products: int
    ballast: int

    @property
    def gradients(self) -> int:
        """Returns the gradients' bytes."""
        return 4 * (WIDTH * WIDTH + max(1, self.ballast))


FITTED = (Size(1, 0), Size(1, 1 << 18), Size(1, 1 << 20), Size(1, 1 << 22))
CHECKED = (Size(3, 0), Size(30, 0), Size(30, 1 << 20), Size(100, 0))
UNEQUAL = Size(30, 0)
CUT = (Size(3, 0), Size(30, 0))
PUSHED = Size(1, 0)


def apart(size: Size) -> float:
    """Returns the step time of two independent processes, each with a worker's share."""
    with ExitStack() as both:
        runs = [both.enter_context(running([], settings(size, ROWS))) for _ in range(2)]
        for run in runs:
            run.speed(0.0)  # both have started
        return statistics.mean(1 / run.speed(SECONDS) for run in runs)


def replicas(size: Size) -> float:
    """Returns the time of a synchronous step of two workers."""
    return _launched(["--workers=2"], settings(size, 2 * ROWS), MULTI_WORKER)


def mesh(size: Size) -> float:
    """Returns the step time for one worker's rows, with the matrix sharded by rows over two workers."""
    cut = {"mesh.batch": 1, "mesh.model": 2, "mesh.layouts": [("w", "model,-")]}
    return _launched(["--workers=2"], {**settings(size, ROWS), **cut}, MESH)


def one_asynchronous(size: Size) -> float:
    """Returns the step time of one worker that pulls from a server and pushes to it."""
    return _launched(["--workers=1", "--ps=1"], settings(size, ROWS), PARAMETER_SERVER)


def two_asynchronous(size: Size) -> float:
    """Returns the time between steps of two workers that pull from a server and push to it."""
    return _launched(["--workers=2", "--ps=1"], settings(size, ROWS), PARAMETER_SERVER)


def unequal(size: Size) -> float:
    """Returns the standard deviation of one of two processes' step times, relative to their mean."""
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
    """Returns the name of a measurement in the file."""
    return f"{how}, {size.products} products, {size.ballast} more numbers"


def measure(path: Path, *, rounds: int) -> Measured:
    """Returns `rounds` values of every measurement; resumes an interrupted one from `path`."""
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
    """Returns the bindings of a run of such steps; it writes a metric line about every tenth of a second."""
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
