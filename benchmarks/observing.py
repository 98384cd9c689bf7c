"""What looking at a run takes of its time: `python -m benchmarks.observing [--steps=5000]`

The trainer trains the digits' MLP as `configs/digits_mlp.gin` has it, with all that it writes at its own intervals: the
shortest steps that are shipped, beside which all else is largest. Counted is the time within what shows and writes
figures, by the clock that the whole training is measured with.
"""

import argparse
import io
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from benchmarks.machine import machine
from core.data import digits
from core.optimizers import adamw, warmup_cosine
from core.random import Rng
from core.telemetry import Console, JsonLines, Telemetry, TensorBoard, Warned
from models.classifiers.mlp import MlpClassifier
from trainers.experiment import Experiment
from trainers.settings import Settings
from trainers.trainer import Trainer
from trainers.workdir import Workdir


class Terminal(io.StringIO):
    """A terminal that nobody looks at."""

    def isatty(self) -> bool:
        return True


class Stopwatch:
    """Adds up the seconds within the functions that it watches."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def watching(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Returns the function, timed."""

        def timed(*args: Any, **kwargs: Any) -> Any:
            began = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                self.seconds += time.perf_counter() - began

        return timed


def main() -> None:
    """Prints a row for lines in a pipe, and one for the bar of a terminal."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=5000, help="steps of each run (default: 5000)")
    flags = parser.parse_args()
    os.environ["TERM"] = "xterm-256color"
    print(", ".join(f"{name} {x}" for name, x in machine().items()))
    for place, stream in (("pipe", io.StringIO()), ("terminal", Terminal())):
        looking, whole = measured(stream, flags.steps)
        print(f"{place:10}{1e6 * whole / flags.steps:8.0f} µs a step{100 * looking / whole:8.2f} % of them looking")


def measured(stream: io.StringIO, steps: int) -> tuple[float, float]:
    """Returns the seconds of looking, and of all, from the first step on."""
    watch, began = Stopwatch(), 0.0

    def task(*, rng: Rng) -> MlpClassifier:
        rate = warmup_cosine(3e-3, warmup_steps=100, total_steps=steps)
        return MlpClassifier(rng=rng, sizes=[64, 128, 10], optimizer=adamw(rate))

    def start() -> None:
        nonlocal began
        watch.seconds, began = 0.0, time.perf_counter()

    with tempfile.TemporaryDirectory() as scratch:
        workdir = Workdir(Path(scratch))
        experiment = Experiment(task=task, train_source=digits(), eval_source=digits("test"))
        trainer = Trainer(experiment, workdir, Settings(steps=steps, global_batch_size=32))
        files = JsonLines(workdir.metrics, 0), TensorBoard(workdir.events, 0)
        telemetry = Telemetry([Console(steps, stream), *files], Warned(workdir.warnings, 0))
        for name in ("progress", "warn_once", "note"):
            setattr(telemetry, name, watch.watching(getattr(telemetry, name)))
        log = trainer.hooks[0]
        log.__class__ = type("Watched", (type(log),), {"__call__": watch.watching(type(log).__call__)})
        trainer.train(telemetry, once_traced=start)
        whole = time.perf_counter() - began
        telemetry.close()  # while a bar is live, what is printed goes where it does
        return watch.seconds, whole


if __name__ == "__main__":
    main()
