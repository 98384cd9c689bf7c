"""`python -m benchmarks.side_by_side [--prepare] [--peers ...]`: runs the programs of `docs/coming-from.md`.

Runs each one unchanged, with the packages that it is written for, on the digits that ship with Tapeloop. Prints the
accuracy and the number of lines. `--prepare` makes missing environments.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import tensorflow as tf

from benchmarks.environments import prepare, python_of
from core.data import digits

HERE = Path(__file__).parent
LEAST = 0.94  # of the held-out digits: every program exceeds it, in any order of examples
PROGRAMS = {
    "keras": "keras",
    "sonnet": "orbit",
    "orbit": "orbit",
    "lightning": "torch",
    "jax": "jax",
}  # and their peers


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints a line for each program; returns 1 if one of them failed or learnt too little."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--prepare", action="store_true", help="first make the environments that aren't there")
    parser.add_argument("--peers", nargs="*", choices=PROGRAMS, default=list(PROGRAMS), help="default: all")
    flags = parser.parse_args(arguments)
    pythons = {name: prepare(PROGRAMS[name]) if flags.prepare else python_of(PROGRAMS[name]) for name in flags.peers}
    failed = False
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        lay_out(folder)
        print(f"{'program':<12}{'lines':>6}{'accuracy':>10}{'seconds':>9}")
        for name, python in {"tapeloop": Path(sys.executable), **pythons}.items():
            if python is None:
                print(f"{name:<12}isn't installed: `--prepare` installs it")
                continue
            began = time.perf_counter()
            accuracy, said = ours(folder) if name == "tapeloop" else theirs(name, python, folder)
            seconds = time.perf_counter() - began
            print(f"{name:<12}{lines(name):>6}{accuracy:>10.4f}{seconds:>9.1f}", flush=True)
            if not accuracy > LEAST:
                failed = True
                print(said)
    return int(failed)


def lay_out(folder: Path) -> None:
    """Writes the digits where the programs read them, and the programs next to them."""
    for split in ("train", "test"):
        source = digits(split)
        features = source.gather(tf.range(len(source), dtype=tf.int64))
        image, label = features["image"].numpy().reshape(-1, 64), features["label"].numpy()
        np.savez(folder / f"{split}.npz", image=image, label=label)
    for program in programs():
        (folder / program.name).write_text(program.read_text())


def programs() -> Iterator[Path]:
    """Yields the files that pages show."""
    yield from sorted(path for path in HERE.iterdir() if path.suffix in (".py", ".gin") and path.name[:2] != "__")


def lines(name: str) -> int:
    """Counts the lines of a program that aren't empty."""
    files = [HERE / "ours.py", HERE / "ours.gin"] if name == "tapeloop" else [HERE / f"in_{name}.py"]
    return sum(bool(line.strip()) for file in files for line in file.read_text().splitlines())


def ours(folder: Path) -> tuple[float, str]:
    """Runs Tapeloop's program; returns its accuracy and its output."""
    done = _run([sys.executable, "-m", "trainers.main", "--gin_file=ours.gin"], folder)
    if done.returncode:
        return 0.0, done.stdout + done.stderr
    result = json.loads((folder / "runs" / "ours" / "result.json").read_text())
    return float(result["evaluation"]["accuracy"]), done.stdout


def theirs(name: str, python: Path, folder: Path) -> tuple[float, str]:
    """Runs a peer's program, which prints its accuracy in its last line."""
    done = _run([str(python), f"in_{name}.py"], folder)
    last = done.stdout.strip().rpartition("\n")[2].split()
    accuracy = float(last[1]) if done.returncode == 0 and last[:1] == ["accuracy"] else 0.0
    return accuracy, done.stdout + done.stderr


def _run(command: Sequence[str], folder: Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=600, check=False)


if __name__ == "__main__":
    sys.exit(main())
