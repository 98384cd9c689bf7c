"""Cost of a mesh compared with replicas and one device: `python -m benchmarks.meshes [--pairs=15]`

On one machine without GPUs, virtual devices share its cores: a mesh can at best match one device. A small GPT trains
with Megatron's layouts. The first call traces a chunk of steps, lays it out and compiles it.
"""

import argparse
import functools
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf
from rich.console import Console
from rich.table import Table

from benchmarks.layouts import shipped
from benchmarks.pairs import interleaved, ratio
from benchmarks.replicas import run_of
from core.data import ArraySource
from core.distribution import mirrored, one_device
from core.distribution.virtual_devices import make_virtual_cpus
from core.optimizers import adamw
from core.parallel.mesh import MeshPlan, mesh
from models import LanguageModel

TIME, WORDS, BATCH = 64, 256, 32
MEGATRON = shipped("mesh_transformer")
PLACES: dict[str, Callable[[], tf.distribute.Strategy | MeshPlan]] = {
    "one device": lambda: one_device("CPU:0"),
    "2 replicas": lambda: mirrored(replicas=2),
    "4 replicas": lambda: mirrored(replicas=4),
    "1x1": lambda: mesh(layouts=MEGATRON),
    "1x2": lambda: mesh(model=2, layouts=MEGATRON),
    "2x1": lambda: mesh(batch=2, layouts=MEGATRON),
    "2x2": lambda: mesh(batch=2, model=2, layouts=MEGATRON),
}
PEERS = {"1x1": "one device", "1x2": "one device", "2x1": "2 replicas", "2x2": "4 replicas"}


def main() -> None:
    """Prints one row per mesh and peer."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=15, help="rounds of interleaved runs (default: 15)")
    parser.add_argument("--width", type=int, default=128, help="of the model (default: 128)")
    flags = parser.parse_args()
    make_virtual_cpus(4)
    task = functools.partial(
        LanguageModel,
        vocabulary=WORDS,
        context=TIME,
        num_layers=2,
        num_heads=4,
        size=flags.width,
        optimizer=adamw(1e-3),
    )
    random = np.random.RandomState(0)
    shape = [512, TIME + 1]
    features = {"tokens": random.randint(0, WORDS, shape), "document": np.zeros(shape), "bytes": np.ones(shape)}
    text = ArraySource({name: x.astype("int32") for name, x in features.items()}, name="random words")
    runs, first_calls = {}, {}
    with tempfile.TemporaryDirectory() as scratch:
        for name, strategy in PLACES.items():
            settings = {"global_batch_size": BATCH, "chunk_steps": 5, "strategy": strategy()}
            began = time.perf_counter()
            runs[name] = run_of((name, task, text, settings), 10 * BATCH, Path(scratch) / name.replace(" ", ""))
            first_calls[name] = time.perf_counter() - began
        seconds = interleaved(runs, pairs=flags.pairs)
    table = Table("mesh", "peer", "ms a step", "peer's", "time of pairs", "95 % interval", "first call, s", "peer's")
    for name, peer in PEERS.items():
        median, low, high = ratio(seconds[name], seconds[peer])
        steps = [f"{np.median(seconds[side]) / 10 * 1e3:.1f}" for side in (name, peer)]
        calls = [f"{first_calls[side]:.1f}" for side in (name, peer)]
        table.add_row(name, peer, *steps, f"{median:.2f}", f"{low:.2f} to {high:.2f}", *calls)
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
