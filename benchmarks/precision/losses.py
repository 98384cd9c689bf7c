"""The losses of shipped configurations after a few hundred steps, in float32 and in bfloat16.

Rounding alone changes the loss of a network that has learned nearly everything. A third training shows by how much: in
float32 too, but in two microbatches, which changes the order of sums.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from benchmarks.pairs import SAMPLES
from benchmarks.running import CHECKOUT

CONFIGURATIONS = ("digits_convnet", "digits_gan", "text_nano", "digits_ddpm")
MEAN_OF = 100  # steps, the last ones
ALLOWED = 0.01  # relative difference of the mean over the seeds
WAYS = {"float32": ("float32", 1), "bfloat16": ("bfloat16", 1), "reordered": ("float32", 2)}  # precision, microbatches


def rows(configurations: Sequence[str], *, steps: int, seeds: int) -> Iterator[tuple[str, str, dict[str, list[float]]]]:
    """Yields (configuration, loss, its values by seed in each of the `WAYS`)."""
    for name in configurations:
        found = {
            way: [losses(name, *given, steps=steps, seed=seed) for seed in range(seeds)] for way, given in WAYS.items()
        }
        for key in found["float32"][0]:
            yield name, key, {way: [each[key] for each in values] for way, values in found.items()}


def losses(name: str, precision: str, microbatches: int, *, steps: int, seed: int) -> dict[str, float]:
    """Trains a configuration in a new process; returns the mean training losses of the last steps."""
    bindings: dict[str, object] = {
        "Experiment.seed": seed,
        "Trainer.steps": steps,
        "Trainer.log_every": MEAN_OF,
        "Trainer.evaluate_every": None,
        "Trainer.checkpoint_every": None,
        "Trainer.hooks": [],
        "Trainer.precision": precision,
        "Trainer.microbatches": microbatches,
    }
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "trainers.main", f"--gin_file=configs/{name}.gin", f"--workdir={folder}/run"]
        command += [f"--gin_param={key} = {value!r}" for key, value in bindings.items()]
        subprocess.run(command, cwd=CHECKOUT, check=True, capture_output=True)
        lines = [json.loads(line) for line in (Path(folder) / "run" / "metrics.jsonl").read_text().splitlines()]
    last = [line for line in lines if line["split"] == "train"][-1]
    return {key: value for key, value in last.items() if key == "loss" or key.endswith("/loss")}


def difference(values: Sequence[float], like: Sequence[float]) -> tuple[float, float, float]:
    """Returns the relative difference of the two means, with a 95 % bootstrap interval over the seeds."""
    chosen = np.random.RandomState(0).randint(len(like), size=[SAMPLES, len(like)])
    sampled = np.mean(np.asarray(values)[chosen], 1) / np.mean(np.asarray(like)[chosen], 1) - 1.0
    low, high = np.percentile(sampled, [2.5, 97.5])
    return float(np.mean(values) / np.mean(like)) - 1.0, float(low), float(high)
