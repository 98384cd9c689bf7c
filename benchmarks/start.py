"""Time from a command to its first finished step: `python -m benchmarks.start [--rounds=9] [--page=FILE]`

Compares `configs/digits_mlp.gin` with the real command and a minimal Keras script of the same model and data, using
`fit` or `train_on_batch`. Fresh processes take turns and are timed from outside, from their start. Tapeloop is done
when `metrics.jsonl` has the first step's metrics, Keras when its callback, or the call, says so. Keras has a separate
environment (`--prepare` makes it). Bytecode is cached as in an installation: the first process of each kind isn't
counted, and leaves its bytecode in a folder for the others.
"""

import argparse
import functools
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from benchmarks.environments import prepare, python_of
from benchmarks.machine import machine
from benchmarks.pages import table, written
from benchmarks.pairs import interleaved, ratio

CHECKOUT = Path(__file__).resolve().parent.parent
DIGITS = CHECKOUT / "core" / "data" / "embedded" / "digits.npz"
SCRIPT = CHECKOUT / "benchmarks" / "in_keras" / "first_step.py"
OURS = "`trainers.main`"
HEAD = ["first step by", "seconds", "slowest", "ours takes", "95 %"]
POLL_SECONDS = 0.001
MOST_SECONDS = 120.0


def main() -> None:
    """Prints a table, and writes it into a page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9, help="processes of each kind (default: 9)")
    parser.add_argument("--prepare", action="store_true", help="first make the environment of Keras, if it isn't there")
    parser.add_argument("--page", type=Path, help="page with this table, such as benchmarks/notes/performance.md")
    flags = parser.parse_args()
    about, python = machine(), prepare("keras") if flags.prepare else python_of("keras")
    rows = measured(flags.rounds, python)
    said = f"{about['processor']}, {about['cores']} cores, TensorFlow {about['tensorflow']}"
    found = f"{table(HEAD, rows)}\nMedians of {flags.rounds} processes of each kind, after one not counted: {said}.\n"
    print(found)
    if flags.page:
        flags.page.write_text(written(flags.page.read_text(), {"start": found}))


def measured(rounds: int, keras: Path | None) -> list[list[str]]:
    """Returns the rows of the table; without a Python that has Keras, its row says so."""
    with tempfile.TemporaryDirectory() as scratch:
        environment = {**os.environ, "PYTHONPYCACHEPREFIX": scratch, "TF_CPP_MIN_LOG_LEVEL": "3"}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        runs: dict[str, Callable[[], float]] = {OURS: functools.partial(ours, environment)}
        if keras:
            for call in ("fit", "train_on_batch"):
                runs[f"Keras, `{call}`"] = functools.partial(theirs, environment, keras, call)
        seconds = interleaved(runs, pairs=rounds)
    rows = [_row(name, found, seconds[OURS]) for name, found in seconds.items()]
    return rows if keras else [*rows, ["Keras", "isn't installed: `--prepare` installs it", "", "", ""]]


def ours(environment: Mapping[str, str], *more: str) -> float:
    """Starts a training of the digits with `more` flags; returns the seconds until its first metric line."""
    with tempfile.TemporaryDirectory() as scratch:
        # Its file of progress tells other processes what is done.
        metrics = Path(scratch, "run", "metrics.jsonl")
        words = ["-m", "trainers.main", "--gin_file=configs/digits_mlp.gin", "--gin_param=Trainer.log_every = 1", *more]
        began = time.perf_counter()
        process = subprocess.Popen(
            [sys.executable, *words, f"--workdir={metrics.parent}"],
            cwd=CHECKOUT,
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            while not (metrics.is_file() and metrics.stat().st_size):
                if process.poll() is not None or time.perf_counter() - began > MOST_SECONDS:
                    raise SystemExit(f"error: `{' '.join(words)}` took no step")
                time.sleep(POLL_SECONDS)
            return time.perf_counter() - began
        finally:
            process.kill()
            process.wait()


def theirs(environment: Mapping[str, str], python: Path, call: str) -> float:
    """Starts the Keras script; returns the seconds until it prints that its step is done."""
    began = time.perf_counter()
    process = subprocess.Popen(
        [str(python), str(SCRIPT), str(DIGITS), call],
        env={**environment, "KERAS_BACKEND": "tensorflow"},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    try:
        assert process.stdout
        if not process.stdout.readline():
            raise SystemExit(f"error: `{SCRIPT}` took no step")
        return time.perf_counter() - began
    finally:
        process.kill()
        process.wait()


def _row(name: str, seconds: np.ndarray, own: np.ndarray) -> list[str]:
    median, low, high = ratio(own, seconds)
    compared = ["", ""] if name == OURS else [f"{median:.2f} of its time", f"{low:.2f} to {high:.2f}"]
    return [name, f"{np.median(seconds):.2f}", f"{seconds.max():.2f}", *compared]


if __name__ == "__main__":
    main()
