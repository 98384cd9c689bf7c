"""Cost of observing a run: `python -m benchmarks.observing [--page=benchmarks/notes/observing.md]`

The smallest shipped experiments train as their files say: their steps are shortest, so everything else weighs most. The
cost is the time in functions that show and write metrics, at the run's default intervals. A run that shows and writes
nothing takes turns with each: its speed-up measures the same without a clock inside. A tracker's thread looks into the
folder as often as its share of the time allows, not only every few seconds.
"""

import argparse
import contextlib
import dataclasses
import io
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import gin
import numpy as np

from benchmarks.checkout import CHECKOUT
from benchmarks.machine import machine
from benchmarks.pages import table, written
from benchmarks.pairs import interleaved, ratio
from core.telemetry import Console, JsonLines, Telemetry, TensorBoard, Warned
from trainers import configurables as configurables  # registers them with gin
from trainers import hooks
from trainers.experiment import Experiment
from trainers.hooks import Hook, track
from trainers.hooks.track import Track
from trainers.settings import Settings
from trainers.trainer import Trainer
from trainers.workdir import Workdir

CONFIGURATIONS = ("digits_linear", "digits_mlp")
TRACKERS = ("mlflow", "trackio", "wandb")  # in folders
LAP = 2500  # steps, after as many that aren't counted
TRACKED_LAP = 20_000  # a tracker begins a run within the first ones
HEAD = ["experiment", "shown in", "steps/s", "of the time, looking", "as fast if it looks at nothing", "95 %"]


class Terminal(io.StringIO):
    """A terminal without a viewer."""

    def isatty(self) -> bool:
        return True


class Stopwatch:
    """Adds up the seconds in the functions that it watches."""

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


class LapEnd(BaseException):
    """Ends a run where it can resume."""


class Lap(Hook):
    """Times every other `every` steps, and ends the run after them."""

    def __init__(self, watch: Stopwatch, every: int):
        super().__init__(every)
        self.seconds, self.shares = 0.0, list[float]()  # the last lap's seconds, and the shares spent observing
        self._watch, self._began, self._looked = watch, 0.0, 0.0

    def __call__(self, run: Any) -> None:
        now = time.perf_counter()
        if run.step // self.every % 2:
            self._began, self._looked = now, self._watch.seconds
            return
        self.seconds = now - self._began
        self.shares.append((self._watch.seconds - self._looked) / self.seconds)
        raise LapEnd


class Side:
    """A run that takes a lap on request."""

    def __init__(self, folder: Path, stream: io.StringIO | None, lap: int, more: Sequence[Hook] = ()):
        """With `stream`, shows the metrics there and writes them; without, does neither. `more` are further hooks."""
        watch = Stopwatch()
        self.lap = Lap(watch, lap)
        settings = Settings(steps=2 * lap * 10**4, evaluate_every=None, checkpoint_every=None, hooks=[self.lap, *more])
        if stream is None:
            settings = dataclasses.replace(settings, log_every=None)
        workdir = Workdir(folder)
        self._trainer, self._telemetry = Trainer(Experiment(eval_source=None), workdir, settings), Telemetry([])
        if stream:
            files = JsonLines(workdir.metrics, 0), TensorBoard(workdir.events, 0)
            self._telemetry = Telemetry([Console(settings.steps, stream), *files], Warned(workdir.warnings, 0))
            for name in ("progress", "warn_once", "note"):
                setattr(self._telemetry, name, watch.watching(getattr(self._telemetry, name)))
            log = self._trainer.hooks[0]
            log.__class__ = type("Watched", (type(log),), {"__call__": watch.watching(type(log).__call__)})

    def seconds(self) -> float:
        """Takes a lap, and returns its seconds."""
        with contextlib.suppress(LapEnd):
            self._trainer.train(self._telemetry)
        return self.lap.seconds

    def close(self) -> None:
        """Removes a live bar from the terminal: printed lines would go to it."""
        self._telemetry.close()


def main() -> None:
    """Prints a table, and writes it into a page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=20, help="laps of each kind (default: 20)")
    parser.add_argument("--page", type=Path, help="page that has this table")
    flags = parser.parse_args()
    os.environ["TERM"] = "xterm-256color"
    os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"
    os.environ["TRACKIO_DIR"] = tempfile.mkdtemp()  # trackio reads it once, when it is imported
    track.SECONDS = 1e-3  # with 0 its thread would never rest
    about, rows = machine(), []
    for name in CONFIGURATIONS:
        places = [("a pipe", io.StringIO, None), ("a terminal", Terminal, None)]
        trackers = TRACKERS if name == CONFIGURATIONS[0] else ()  # the smallest steps
        for place, stream, tracker in [*places, *((f"a pipe and {x}", io.StringIO, x) for x in trackers)]:
            rows.append([f"`{name}`", place, *measured(name, stream(), flags.pairs, tracker)])
            print(*rows[-1], sep="  ", flush=True)
    said = (
        f"{about['processor']}, {about['cores']} cores, load {about['load_before']}, TensorFlow {about['tensorflow']}"
    )
    laps = f"{flags.pairs} pairs of {LAP:,} steps, with a tracker {TRACKED_LAP:,}"
    found = f"{table(HEAD, rows)}\nMedians of {laps}: {said}.\n"
    print(found)
    if flags.page:
        flags.page.write_text(written(flags.page.read_text(), {"observing": found}))


def measured(name: str, stream: io.StringIO, pairs: int, tracker: str | None) -> Sequence[str]:
    """Returns the cells of one row."""
    gin.clear_config()
    hooks.register()
    gin.parse_config_file(str(CHECKOUT / "configs" / f"{name}.gin"))
    with tempfile.TemporaryDirectory() as scratch:
        url = f"{scratch}/mlruns" if tracker == "mlflow" else None
        more = [Track(to=tracker, url=url)] if tracker else []
        lap = TRACKED_LAP if tracker else LAP
        looked, plain = Side(Path(scratch, "looked"), stream, lap, more), Side(Path(scratch, "plain"), None, lap)
        with contextlib.closing(looked):
            seconds = interleaved({"looked": looked.seconds, "plain": plain.seconds}, pairs=pairs)
        median, low, high = ratio(seconds["looked"], seconds["plain"])
    speed, share = lap / np.median(seconds["looked"]), np.median(looked.lap.shares)
    return f"{speed:,.0f}", f"{share:.2%}", f"{median:.3f}", f"{low:.3f} to {high:.3f}"


if __name__ == "__main__":
    main()
