"""Memory cost of sharded checkpoints: `python -m benchmarks.mesh_checkpoints [--megabytes=512] [--workers=2]`

A variable is sharded in four on a mesh of 2x2 virtual CPUs, in one process or several. Processes that do nothing else
make, save or restore it; their peak memory, next to the variable's size, is the cost of that action. With several
processes the first one counts, which does most of the work.
"""

import argparse
import contextlib
import json
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
from core.distribution import Agreement, backend_of
from core.parallel.mesh.plan import mesh
from core.parallel.mesh.strategy import MeshStrategy
from core.parallel.mesh.variable import MeshVariable, layout
from trainers.launch.commands import free_ports
from trainers.loop.run_state import peers_of

MB = 1 << 20
COLUMNS = 8192


class Cost(NamedTuple):
    """Memory and time of one action."""

    megabytes: float  # at its peak, more than before the action
    seconds: float


def cost(action: str, directory: Path, megabytes: int, part: int, workers: int = 1) -> Cost:
    """Measures an action, or several joined by `, ` and done one after the other, in fresh processes."""
    spawn, addresses = multiprocessing.get_context("spawn"), [f"127.0.0.1:{port}" for port in free_ports(workers)]
    with contextlib.ExitStack() as pools:
        found = []
        for index in range(workers):
            task = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}
            pool = pools.enter_context(spawn.Pool(1))
            found.append(pool.apply_async(_measured, (json.dumps(task), action, directory, megabytes, part)))
        costs: list[Cost] = [each.get() for each in found]
    return costs[0]


def main() -> None:
    """Prints one row for each action."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--megabytes", type=int, default=512, help="of the variable (default: 512)")
    parser.add_argument("--part", type=int, default=32, help="megabytes of the largest part fetched (default: 32)")
    parser.add_argument("--workers", type=int, default=1, help="processes that share the mesh (default: 1)")
    flags = parser.parse_args()
    table = Table("", "MB at the peak", "seconds")
    with tempfile.TemporaryDirectory() as folder:
        for action in ACTIONS:
            found = cost(action, Path(folder), flags.megabytes, flags.part, flags.workers)
            table.add_row(action, f"{found.megabytes:,.0f}", f"{found.seconds:.1f}")
    Console().print(table)


def _measured(task: str, action: str, directory: Path, megabytes: int, part: int) -> Cost:
    os.environ["TF_CONFIG"] = task
    parts.MOST_BYTES = part * MB
    strategy = MeshStrategy(mesh(batch=2, model=2))
    given = [strategy, megabytes if action == "make" else {"w": MeshVariable(_filled(strategy, megabytes))}, directory]
    before, began = _peak(), time.monotonic()
    for each in action.split(", "):
        ACTIONS[each](*given)
    found = Cost(_peak() - before, time.monotonic() - began)
    Agreement(strategy).barrier()  # no process leaves while another works
    return found


def _filled(strategy: MeshStrategy, megabytes: int) -> tf.Tensor:
    """Returns a value whose shards were made in place: the process has never held more."""
    made = []
    for i, device in zip(strategy.mesh.local_device_ids(), strategy.mesh.local_devices(), strict=True):
        with tf.device(device):
            made.append(tf.fill([megabytes * MB // 4 // COLUMNS // 2, COLUMNS // 2], float(i)))
    return dtensor.pack(made, layout(strategy.mesh, ("batch", "model")))


def _made(strategy: MeshStrategy, megabytes: int, _: Path) -> tf.Variable:
    with strategy.scope(lambda shape: ("batch", "model")):
        return tf.Variable(tf.zeros([megabytes * MB // 4 // COLUMNS, COLUMNS]))


def _save(strategy: MeshStrategy, variables: checkpoint.Variables, directory: Path) -> None:
    checkpoint.save(directory, variables, step=1, examples=1, config_hash="", peers=peers_of(backend_of(strategy)))


def _restore(strategy: MeshStrategy, variables: checkpoint.Variables, directory: Path) -> None:
    manifest = checkpoint.newest(directory, warn=print)
    assert manifest is not None
    checkpoint.restore(manifest, variables)


def _peak() -> float:
    """Returns this process's peak memory; `getrusage` would include that of its parent."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) / 1024


ACTIONS: dict[str, Callable[..., object]] = {"make": _made, "save": _save, "restore": _restore}

if __name__ == "__main__":
    main()
