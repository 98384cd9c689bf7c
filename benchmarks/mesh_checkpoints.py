"""What a checkpoint of a cut variable takes: `python -m benchmarks.mesh_checkpoints [--megabytes=512] [--part=32]`

A variable lies in four parts on a mesh of 2x2 virtual CPUs. What it takes of this machine's memory to make it, and to
save and restore it beside what it takes itself, is told by the peaks of processes that do nothing else.
"""

import argparse
import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import tensorflow as tf
from rich.console import Console
from rich.table import Table
from tensorflow.experimental import dtensor

from core import checkpoint
from core.checkpoint import parts
from core.distribution.mesh_plan import mesh
from core.distribution.mesh_strategy import MeshStrategy
from core.distribution.mesh_variable import MeshVariable, layout

MB = 1 << 20
COLUMNS = 8192


class Cost(NamedTuple):
    """Holds what one action took."""

    megabytes: float  # at its peak, beside what was there before
    seconds: float


def cost(action: str, directory: Path, megabytes: int, part: int) -> Cost:
    """Returns what `action` takes, from a process of its own."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_measured, (action, directory, megabytes, part))


def main() -> None:
    """Prints one row for each action."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--megabytes", type=int, default=512, help="of the variable (default: 512)")
    parser.add_argument("--part", type=int, default=32, help="megabytes of the largest part fetched (default: 32)")
    flags = parser.parse_args()
    table = Table("", "MB at the peak", "seconds")
    with tempfile.TemporaryDirectory() as folder:
        for action in ACTIONS:
            found = cost(action, Path(folder), flags.megabytes, flags.part)
            table.add_row(action, f"{found.megabytes:,.0f}", f"{found.seconds:.1f}")
    Console().print(table)


def _measured(action: str, directory: Path, megabytes: int, part: int) -> Cost:
    parts.MOST_BYTES = part * MB
    strategy = MeshStrategy(mesh(batch=2, model=2))
    given = (
        (strategy, megabytes) if action == "make" else (directory, {"w": MeshVariable(_filled(strategy, megabytes))})
    )
    before, began = _peak(), time.monotonic()
    ACTIONS[action](*given)
    return Cost(_peak() - before, time.monotonic() - began)


def _filled(strategy: MeshStrategy, megabytes: int) -> tf.Tensor:
    """Returns a value whose parts were made where they are: the process has never held more."""
    made = []
    for i, device in enumerate(strategy.mesh.local_devices()):
        with tf.device(device):
            made.append(tf.fill([megabytes * MB // 4 // COLUMNS // 2, COLUMNS // 2], float(i)))
    return dtensor.pack(made, layout(strategy.mesh, ("batch", "model")))


def _made(strategy: MeshStrategy, megabytes: int) -> tf.Variable:
    with strategy.scope(lambda shape: ("batch", "model")):
        return tf.Variable(tf.zeros([megabytes * MB // 4 // COLUMNS, COLUMNS]))


def _save(directory: Path, variables: checkpoint.Variables) -> None:
    checkpoint.save(directory, variables, step=1, examples=1, config_hash="")


def _restore(directory: Path, variables: checkpoint.Variables) -> None:
    manifest = checkpoint.newest(directory, warn=print)
    assert manifest is not None
    checkpoint.restore(manifest, variables)


def _peak() -> float:
    """Returns the most memory that this process has had; `getrusage` would count that of the one that started it."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) / 1024


ACTIONS: dict[str, Callable[..., object]] = {"make": _made, "save": _save, "restore": _restore}

if __name__ == "__main__":
    main()
