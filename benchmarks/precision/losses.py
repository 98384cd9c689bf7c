"""The losses of shipped configurations after a few hundred steps, in float32 and in bfloat16."""

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from benchmarks.running import CHECKOUT

CONFIGURATIONS = ("digits_convnet", "digits_gan", "text_nano", "digits_ddpm")
MEAN_OF = 100  # steps, the last ones
ALLOWED = 0.01  # relative difference of the mean over the seeds


def rows(
    configurations: Sequence[str], *, steps: int, seeds: int
) -> Iterator[tuple[str, str, list[float], list[float]]]:
    """Yields (configuration, loss, its values by seed in float32, and in bfloat16)."""
    for name in configurations:
        found = {
            dtype: [losses(name, dtype, steps=steps, seed=seed) for seed in range(seeds)]
            for dtype in ("float32", "bfloat16")
        }
        for key in found["float32"][0]:
            wide, narrow = ([each[key] for each in found[dtype]] for dtype in ("float32", "bfloat16"))
            yield name, key, wide, narrow


def losses(name: str, precision: str, *, steps: int, seed: int) -> dict[str, float]:
    """Trains a configuration in a new process; returns the mean training losses of the last steps."""
    bindings: dict[str, object] = {
        "Experiment.seed": seed,
        "Trainer.steps": steps,
        "Trainer.log_every": MEAN_OF,
        "Trainer.evaluate_every": None,
        "Trainer.checkpoint_every": None,
        "Trainer.hooks": [],
        "Trainer.precision": precision,
    }
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "trainers.main", f"--gin_file=configs/{name}.gin", f"--workdir={folder}/run"]
        command += [f"--gin_param={key} = {value!r}" for key, value in bindings.items()]
        subprocess.run(command, cwd=CHECKOUT, check=True, capture_output=True)
        lines = [json.loads(line) for line in (Path(folder) / "run" / "metrics.jsonl").read_text().splitlines()]
    last = [line for line in lines if line["split"] == "train"][-1]
    return {key: value for key, value in last.items() if key == "loss" or key.endswith("/loss")}


def difference(float32: list[float], bfloat16: list[float]) -> float:
    """Returns the relative difference of the two means."""
    return float(np.mean(bfloat16) / np.mean(float32)) - 1.0
