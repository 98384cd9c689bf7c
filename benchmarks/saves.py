"""Training time that saving takes: `python -m benchmarks.saves [--rounds=6] [--page=docs/checkpoints.md]`

Trains 25 million float32 weights with Adam, and saves every 100 steps, in the background or in the loop. Each kind
takes turns with a run that never saves. Its wait is the time in the call that saves, by the loop's own clock, plus the
time that the next save would wait for this one. The slowdown of the steps is relative to the run without saves. It
takes about six minutes on two cores.
"""

import argparse
import os
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np

from benchmarks.machine import machine
from benchmarks.pages import table, written
from benchmarks.pairs import interleaved, ratio
from core.data import digits
from core.optimizers import adam
from core.random import Rng
from models.classifiers.mlp import MlpClassifier
from trainers.experiment import Experiment
from trainers.settings import Settings
from trainers.trainer import Trainer
from trainers.workdir import Workdir

STEPS = 100  # between saves
SIZES = [64, 3500, 3500, 3500, 10]
HEAD = ["a checkpoint is written", "a step", "the loop waits", "of its time", "other steps take", "95 %"]


class Side:
    """A run that saves and takes `STEPS` steps on request."""

    def __init__(self, folder: Path, *, examples: int, sizes: Sequence[int] = SIZES, steps: int = STEPS):
        def task(*, rng: Rng) -> MlpClassifier:
            return MlpClassifier(rng=rng, sizes=list(sizes), optimizer=adam(1e-4))

        workdir = Workdir(folder)
        workdir.create()
        settings = Settings(
            steps=10**6,
            global_batch_size=examples,
            chunk_steps=min(25, steps),
            log_every=None,
            evaluate_every=None,
            checkpoint_every=None,
            keep_checkpoints=1,
        )
        self.trainer, self.steps = Trainer(Experiment(task=task, train_source=digits()), workdir, settings), steps
        self.waits, self.shares = list[float](), list[float]()  # per turn: the wait, and its share of the turn
        self._chunks = self.trainer.input.chunks_from(0)
        self._first = next(self._chunks)
        self.trainer.warm_up(self._first)

    def seconds(self, *, saves: bool = True, in_loop: bool = False) -> float:
        """Takes a turn; returns the seconds of its steps, without those in which the loop waited."""
        began = time.perf_counter()
        if saves:
            self.trainer.save()
            if in_loop:
                self.trainer.settle()
        saved = time.perf_counter()
        end = self.trainer.step + self.steps
        while self.trainer.step < end:
            self.trainer.advance(next(self._chunks))
        stepped = time.perf_counter()
        self.trainer.settle()  # as the next save would; and the next turn belongs to another run
        seconds = time.perf_counter() - began
        steps = stepped - saved
        self.waits.append(seconds - steps)
        self.shares.append((seconds - steps) / seconds)
        return steps


def main() -> None:
    """Prints a table, and writes it into a page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=6, help="turns of each kind (default: 6)")
    parser.add_argument("--examples", type=int, default=128, help="of a step, which makes it longer (default: 128)")
    parser.add_argument("--page", type=Path, help="page that has this table")
    flags = parser.parse_args()
    about = machine()
    rows = measured(flags.rounds, examples=flags.examples)
    said = (
        f"{about['processor']}, {about['cores']} cores, load {about['load_before']}, TensorFlow {about['tensorflow']}"
    )
    turns = f"Medians of {flags.rounds} turns of {STEPS} steps, after one that isn't counted"
    found = f"{table(HEAD, rows)}\n{turns}: {said}.\n"
    print(found)
    if flags.page:
        flags.page.write_text(written(flags.page.read_text(), {"saves": found}))


def measured(rounds: int, *, examples: int, sizes: Sequence[int] = SIZES, steps: int = STEPS) -> list[list[str]]:
    """Returns the rows of the table."""
    with tempfile.TemporaryDirectory() as scratch:
        side = {
            name: Side(Path(scratch, name), examples=examples, sizes=sizes, steps=steps)
            for name in ("meanwhile", "in the loop", "never")
        }
        turns = {
            "meanwhile": side["meanwhile"].seconds,
            "in the loop": lambda: side["in the loop"].seconds(in_loop=True),
            "never": lambda: side["never"].seconds(saves=False),
        }
        seconds = interleaved(turns, pairs=rounds)
        return [_row(name, side[name], seconds[name], seconds["never"]) for name in ("meanwhile", "in the loop")]


def _row(name: str, side: Side, seconds: np.ndarray, plain: np.ndarray) -> list[str]:
    median, low, high = ratio(seconds, plain)
    wait, share = (np.median(found[-len(seconds) :]) for found in (side.waits, side.shares))  # without the first turn
    step = 1e3 * np.median(plain) / side.steps
    return [
        name,
        f"{step:.0f} ms",
        f"{wait:.2f} s",
        f"{share:.1%}",
        f"{median:.3f} times as long",
        f"{low:.3f} to {high:.3f}",
    ]


if __name__ == "__main__":
    main()
