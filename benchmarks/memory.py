"""Growth of a run's memory with its steps: `python -m benchmarks.memory [--steps=5000] [--chunks=20,100]`

The trainer trains a small classifier on one device, on two replicas and on meshes, each in a separate process. It reads
resident memory at five marks of the second half, after one-time allocations, and fits a line.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

PLACES = ("one device", "2 replicas", "1x2", "2x2")
MARKS = 5


def main() -> None:
    """Prints one row per place and length of a chunk."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=5000, help="steps of each run (default: 5000)")
    parser.add_argument("--chunks", default="20,100", help="steps a chunk (default: 20,100)")
    parser.add_argument("--places", default=",".join(PLACES), help=f"where (default: {','.join(PLACES)})")
    flags = parser.parse_args()
    print(f"{'place':12}{'chunk':>7}{'MB at half':>12}{'MB at the end':>15}{'kB a step':>11}")
    for place in flags.places.split(","):
        for chunk_steps in map(int, flags.chunks.split(",")):
            marks = measured(place, chunk_steps, flags.steps)
            first, last = marks[0][1] / 1e6, marks[-1][1] / 1e6
            print(f"{place:12}{chunk_steps:>7}{first:>12.1f}{last:>15.1f}{growth(marks) / 1e3:>11.2f}", flush=True)


def measured(place: str, chunk_steps: int, steps: int) -> list[tuple[int, int]]:
    """Runs a training in a new process; returns its steps and bytes at the marks."""
    code = f"from benchmarks.memory import run; run({place!r}, {chunk_steps}, {steps})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return [(step, size) for step, size in json.loads(done.stdout.splitlines()[-1])]


def growth(marks: list[tuple[int, int]]) -> float:
    """Returns the slope of the line through the marks, in bytes a step."""
    steps, sizes = zip(*marks, strict=True)
    mean_step, mean_size = sum(steps) / len(steps), sum(sizes) / len(sizes)
    above = sum((x - mean_step) * (y - mean_size) for x, y in marks)
    return float(above / sum((x - mean_step) ** 2 for x in steps))


def run(place: str, chunk_steps: int, steps: int) -> None:
    """Trains in this process; prints the marks."""
    from core.data import digits
    from core.distribution import mirrored, one_device
    from core.optimizers import adamw
    from core.parallel.mesh import MeshPlan, MeshStrategy, mesh
    from core.random import Rng
    from models.classifiers.mlp import MlpClassifier
    from trainers.experiment import Experiment
    from trainers.settings import Settings
    from trainers.trainer import Trainer
    from trainers.workdir import Workdir

    def task(*, rng: Rng) -> MlpClassifier:
        return MlpClassifier(rng=rng, sizes=[64, 16, 10], optimizer=adamw(1e-3))

    def strategy() -> object:
        if "x" not in place:
            return one_device("CPU:0") if place == "one device" else mirrored(replicas=2)
        batch, model = map(int, place.split("x"))
        plan: MeshPlan = mesh(
            batch=batch, model=model, layouts=[("net/layers/0/?", "...,model"), ("net/layers/1/w", "model,-")]
        )
        return MeshStrategy(plan)

    with tempfile.TemporaryDirectory() as scratch:
        experiment = Experiment(task=task, train_source=digits(), strategy=strategy())
        settings = Settings(
            steps=10**9,
            global_batch_size=32,
            chunk_steps=chunk_steps,
            log_every=10**8,
            evaluate_every=None,
            checkpoint_every=None,
        )
        trainer = Trainer(experiment, Workdir(Path(scratch)), settings)
        chunks = trainer.input.chunks_from(0)
        trainer.warm_up(next(chunks))
        marks = []
        for mark in range(MARKS):
            while trainer.step < steps * (MARKS + mark) // (2 * MARKS - 1):
                trainer.advance(next(chunks))
            trainer.progress.bad_step.numpy()  # until all of it is done
            pages = int(Path("/proc/self/statm").read_text().split()[1])
            marks.append((trainer.step, pages * os.sysconf("SC_PAGE_SIZE")))
        print(json.dumps(marks), flush=True)


if __name__ == "__main__":
    main()
