"""Memory and time of gradient checkpointing: `python -m benchmarks.recompute [--rows=16384] [--pairs=3]`

A model of 16 residual blocks trains in fresh processes, with and without `Experiment.recompute`, in turns. A row has
the peak resident memory of a process, imports included, and the median time of a step.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

WAYS: dict[str, Any] = {
    "stored": (),
    "every other block": {"net/blocks/*": "every_other"},
    "every block": ["net/blocks/*"],
}
BLOCKS, SIZE, HIDDEN, STEPS = 16, 128, 512, 3


def main() -> None:
    """Prints one row for each way, with its ratios to the first."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=16_384, help="examples of a step (default: 16384)")
    parser.add_argument("--pairs", type=int, default=3, help="processes of each way (default: 3)")
    parser.add_argument("--ways", default=",".join(WAYS), help=f"which (default: {','.join(WAYS)})")
    flags = parser.parse_args()
    ways = flags.ways.split(",")
    found: dict[str, list[dict[str, float]]] = {way: [] for way in ways}
    for _ in range(flags.pairs):
        for way in ways:
            found[way].append(measured(way, flags.rows))
    peaks = {way: statistics.median(x["peak"] for x in found[way]) for way in ways}
    seconds = {way: statistics.median(x["seconds"] for x in found[way]) for way in ways}
    spent = {way: statistics.median(x["cpu"] for x in found[way]) for way in ways}
    print(f"{BLOCKS} residual blocks, {flags.rows} rows of {SIZE}, {flags.pairs} processes of each")
    print(f"{'activations':20}{'peak MiB':>10}{'times':>8}{'s a step':>10}{'times':>8}{'CPU s':>8}{'times':>8}")
    for way in ways:
        print(
            f"{way:20}{peaks[way] / 2**20:>10.0f}{peaks[way] / peaks[ways[0]]:>8.2f}{seconds[way]:>10.2f}"
            f"{seconds[way] / seconds[ways[0]]:>8.2f}{spent[way]:>8.2f}{spent[way] / spent[ways[0]]:>8.2f}"
        )


def measured(way: str, rows: int) -> dict[str, float]:
    """Trains in a fresh process; returns its peak resident bytes, the seconds of a step, and the last loss."""
    code = f"from benchmarks.recompute import run; run({way!r}, {rows})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"error: {done.stdout[-1000:]}{done.stderr[-1000:]}")
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def run(way: str, rows: int) -> None:
    """Trains in this process; prints what it measures."""
    import numpy as np
    import tensorflow as tf

    from core.data import ArraySource
    from core.layers import LayerNorm, Linear, Residual, Sequential, gelu
    from core.measure import peak_memory
    from core.module import Module
    from core.optimizers import sgd
    from core.random import Rng
    from core.task import Loss, Task, Update
    from trainers.experiment import Experiment
    from trainers.settings import Settings
    from trainers.trainer import Trainer
    from trainers.workdir import Workdir

    class Blocks(Module):
        """Pre-norm residual blocks with a hidden layer."""

        def __init__(self, *, rng: Rng):
            super().__init__()
            self.blocks = [self._block(rng.fold(i)) for i in range(BLOCKS)]

        def __call__(self, x: tf.Tensor) -> tf.Tensor:
            for block in self.blocks:
                x = block(x)
            return x

        def _block(self, rng: Rng) -> Residual:
            up, down = Linear(SIZE, HIDDEN, rng=rng.fold("up")), Linear(HIDDEN, SIZE, rng=rng.fold("down"))
            return Residual(Sequential([LayerNorm(SIZE), up, gelu, down]))

    class Deep(Task):
        """Regression to zero."""

        def __init__(self, *, rng: Rng):
            super().__init__()
            self.net = Blocks(rng=rng)

        def phases(self) -> list[Update]:
            return [Update("net", loss=self.loss, trains=self.net, optimizer=sgd(1e-3))]

        def loss(self, batch: Any, rng: Any) -> Loss:
            return Loss(tf.reduce_mean(tf.square(self.net(batch["x"])), -1))

    x = np.random.RandomState(0).randn(rows, SIZE).astype("float32")
    with tempfile.TemporaryDirectory() as scratch:
        experiment = Experiment(task=Deep, train_source=ArraySource({"x": x}, name="noise"), recompute=WAYS[way])
        settings = Settings(
            steps=10**6,
            global_batch_size=rows,
            chunk_steps=1,
            log_every=10**6,
            evaluate_every=None,
            checkpoint_every=None,
        )
        trainer = Trainer(experiment, Workdir(Path(scratch)), settings)
        chunks = trainer.input.chunks_from(0)
        trainer.warm_up(next(chunks))
        seconds, spent = [], []
        for _ in range(STEPS):
            chunk, began = next(chunks), time.perf_counter()
            used = time.process_time()
            trainer.take_steps(chunk, 1, run=trainer.programs.chunk)
            trainer.progress.bad_step.numpy()  # until all of it is done
            seconds.append(time.perf_counter() - began)
            spent.append(time.process_time() - used)
        print(
            json.dumps(
                {
                    "peak": peak_memory()["process"],
                    "seconds": statistics.median(seconds[1:]),
                    "cpu": statistics.median(spent[1:]),
                }
            )
        )


if __name__ == "__main__":
    main()
