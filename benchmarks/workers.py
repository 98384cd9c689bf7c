"""Communication cost of two workers, by number of microbatches: `python -m benchmarks.workers [--rounds=3]`

Two launched workers on 127.0.0.1 train `configs/digits_mlp.gin` in steps of k microbatches of 32 rows each. Their
baseline is two independent processes that do as much work at the same time. The difference is the cost of the one
reduction a step, waiting included. Both use the real commands; times are those of the metric lines.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

CONFIGS = Path(__file__).parents[1] / "configs"
ROWS = 32


def main() -> None:
    """Prints one row per number of microbatches."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3, help="interleaved runs of each (default: 3)")
    flags = parser.parse_args()
    counts = (1, 4, 16)
    together: dict[int, list[float]] = {k: [] for k in counts}
    apart: dict[int, list[float]] = {k: [] for k in counts}
    for _ in range(flags.rounds):
        for k in counts:
            together[k].append(seconds_together(k))
            apart[k].append(seconds_apart(k))
    table = Table("microbatches", "ms a step, together", "ms a step, apart", "difference, ms", "over all rounds")
    for k in counts:
        talking = 1e3 * (np.array(together[k]) - np.array(apart[k]))
        table.add_row(
            str(k), f"{1e3 * np.median(together[k]):.2f}", f"{1e3 * np.median(apart[k]):.2f}",
            f"{np.median(talking):.2f}", f"{talking.min():.2f} to {talking.max():.2f}",
        )  # fmt: skip
    Console(width=120).print(table)


def seconds_together(k: int) -> float:
    """Returns the step time of two workers."""
    with tempfile.TemporaryDirectory() as scratch:
        launch = [sys.executable, "-m", "trainers.launch", "--workers=2", "--"]
        runtime = f"--gin_file={CONFIGS / 'runtime' / 'multi_worker.gin'}"
        run([*launch, *training(k, 2 * ROWS * k), runtime, "--workdir=run"], scratch).communicate()
        return seconds_of_lines(Path(scratch) / "run")


def seconds_apart(k: int) -> float:
    """Returns the step time of two processes, each with a worker's share."""
    with tempfile.TemporaryDirectory() as scratch:
        alone = [sys.executable, "-m", "trainers.main", *training(k, ROWS * k)]
        processes = [run([*alone, f"--workdir={i}"], scratch) for i in range(2)]
        for process in processes:
            process.communicate()
        return float(np.mean([seconds_of_lines(Path(scratch) / str(i)) for i in range(2)]))


def training(k: int, batch: int) -> list[str]:
    """Returns the flags of a run of ten metric lines."""
    settings = {
        "steps": 1000, "Trainer.log_every": 100, "Trainer.evaluate_every": None, "Trainer.checkpoint_every": None,
        "Trainer.microbatches": k, "Trainer.global_batch_size": batch,
    }  # fmt: skip
    return [f"--gin_file={CONFIGS / 'digits_mlp.gin'}", *(f"--gin_param={key} = {x}" for key, x in settings.items())]


def run(command: list[str], cwd: str) -> subprocess.Popen[bytes]:
    """Runs a process without output."""
    environment = {**os.environ, "PYTHONPATH": str(CONFIGS.parent)}
    return subprocess.Popen(command, cwd=cwd, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def seconds_of_lines(workdir: Path) -> float:
    """Returns the median over all lines but the first, during which the caches are cold."""
    lines = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    return float(np.median([line["step_seconds"] for line in lines if line["split"] == "train"][1:]))


if __name__ == "__main__":
    main()
