"""Cost of bad-step policies: `python -m benchmarks.policies [--rounds=20] [--page=benchmarks/notes/bad_steps.md]`

Runs without bad steps take turns, one per policy, and are compared with `raise`, the default. The cost of `raise`
itself against an earlier revision is measured with `python -m benchmarks.revisions`.
"""

import argparse
import os
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import gin

from benchmarks.checkout import CHECKOUT
from benchmarks.machine import machine
from benchmarks.pages import table, written
from benchmarks.pairs import interleaved, ratio
from trainers import configurables as configurables  # registers them with gin
from trainers import hooks
from trainers.experiment import Experiment
from trainers.settings import Settings
from trainers.trainer import Trainer
from trainers.workdir import Workdir

CONFIGURATIONS = ("digits_mlp", "digits_gan")  # a step of one phase, and of several
POLICIES: Mapping[str, Mapping[str, Any]] = {
    "`raise`": {},
    "`rollback`": {"on_nonfinite": "rollback"},
    "`skip`": {"on_nonfinite": "skip"},
    "`raise`, and `on_spike`": {"on_spike": "rollback"},
    "`skip`, and `on_spike`": {"on_nonfinite": "skip", "on_spike": "skip"},
}
HEAD = ["experiment", "policy", "a step", "beside `raise`", "95 %"]


class Side:
    """A run that takes some steps on request."""

    def __init__(self, folder: Path, policy: Mapping[str, Any], steps: int):
        workdir = Workdir(folder)
        workdir.create()
        settings = Settings(
            steps=10**7,
            chunk_steps=min(50, steps),
            log_every=None,
            evaluate_every=None,
            checkpoint_every=None,
            **policy,
        )
        self._trainer, self._steps = Trainer(Experiment(eval_source=None), workdir, settings), steps
        self._chunks = self._trainer.input.chunks_from(0)
        self._trainer.warm_up(next(self._chunks))
        self._chunks = self._trainer.input.chunks_from(0)

    def seconds(self) -> float:
        """Takes the steps; returns their seconds."""
        trainer, end = self._trainer, self._trainer.step + self._steps
        began = time.perf_counter()
        while trainer.step < end:
            trainer.advance(next(self._chunks))
        trainer.figures()  # ready once the last step is done
        return time.perf_counter() - began


def main() -> None:
    """Prints a table, and writes it into a page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=20, help="turns of each policy (default: 20)")
    parser.add_argument("--steps", type=int, default=1000, help="of a turn (default: 1000)")
    parser.add_argument("--page", type=Path, help="page that has this table")
    flags = parser.parse_args()
    about = machine()
    rows = [row for name in CONFIGURATIONS for row in measured(name, flags.rounds, steps=flags.steps)]
    said = (
        f"{about['processor']}, {about['cores']} cores, load {about['load_before']}, TensorFlow {about['tensorflow']}"
    )
    found = f"{table(HEAD, rows)}\nMedians of {flags.rounds} turns of {flags.steps} steps: {said}.\n"
    print(found)
    if flags.page:
        flags.page.write_text(written(flags.page.read_text(), {"policies": found}))


def measured(name: str, rounds: int, *, steps: int) -> list[list[str]]:
    """Returns the rows of one experiment."""
    gin.clear_config()
    hooks.register()
    gin.parse_config_file(str(CHECKOUT / "configs" / f"{name}.gin"))
    with tempfile.TemporaryDirectory() as scratch:
        turns = {
            policy: Side(Path(scratch, str(i)), settings, steps).seconds
            for i, (policy, settings) in enumerate(POLICIES.items())
        }
        seconds = interleaved(turns, pairs=rounds)
    rows = []
    for policy, found in seconds.items():
        median, low, high = ratio(found, seconds["`raise`"])
        step = f"{1e6 * float(sorted(found)[len(found) // 2]) / steps:.0f} µs"
        rows.append([f"`{name}`", policy, step, f"{median:.3f} times as long", f"{low:.3f} to {high:.3f}"])
    return rows


if __name__ == "__main__":
    main()
