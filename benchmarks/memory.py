"""What it brings to keep the memory of freed tensors: `python -m benchmarks.memory [--rounds=5]`

Real commands, one after the other, as they come and with glibc's own settings in the environment, which are left alone
then. Times are those of the metric lines, memory the most that a process held.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.pairs import ratio
from benchmarks.workers import CONFIGS, seconds_of_lines

GLIBC = {"MALLOC_MMAP_MAX_": "65536"}  # its default
SHORT = {"Trainer.evaluate_every": None, "Trainer.checkpoint_every": None, "Trainer.hooks": ()}
CASES: Mapping[str, Mapping[str, Any]] = {
    "digits_mlp": {"steps": 1000, "Trainer.log_every": 200},
    "digits_convnet": {"steps": 500, "Trainer.log_every": 100},
    "digits_ddpm": {"steps": 200, "Trainer.log_every": 40},
    "digits_cyclegan": {"steps": 100, "half": 50, "Trainer.log_every": 20},
}


def main() -> None:
    """Prints one row per configuration."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5, help="interleaved runs of each (default: 5)")
    flags = parser.parse_args()
    table = Table("configuration", "kept, ms a step", "not", "ratio of pairs", "95 % interval", "kept, MB", "not")
    for name, settings in CASES.items():
        pairs = [
            (seconds_and_size(name, settings, {}), seconds_and_size(name, settings, GLIBC)) for _ in range(flags.rounds)
        ]
        (kept, kept_size), (given_back, size) = np.array(pairs).transpose(1, 2, 0)
        median, low, high = ratio(kept, given_back)
        table.add_row(
            name,
            *(f"{1e3 * np.median(x):.2f}" for x in (kept, given_back)),
            *(f"{median:.2f}", f"{low:.2f} to {high:.2f}"),
            *(f"{np.median(x):.0f}" for x in (kept_size, size)),
        )
    Console(width=120).print(table)


def seconds_and_size(name: str, settings: Mapping[str, Any], environment: Mapping[str, str]) -> tuple[float, float]:
    """Of a step, and of the process in megabytes."""
    bindings = [f"--gin_param={key} = {x}" for key, x in {**SHORT, **settings}.items()]
    with tempfile.TemporaryDirectory() as scratch:
        process = subprocess.Popen(
            [sys.executable, "-m", "trainers.main", f"--gin_file={CONFIGS / name}.gin", *bindings, "--workdir=run"],
            cwd=scratch, env={**os.environ, "PYTHONPATH": str(CONFIGS.parent), **environment},
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        _, status, usage = os.wait4(process.pid, 0)
        assert status == 0, f"{name} ended with {os.waitstatus_to_exitcode(status)}"
        return seconds_of_lines(Path(scratch) / "run"), usage.ru_maxrss / 1e3


if __name__ == "__main__":
    main()
