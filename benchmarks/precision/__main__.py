"""Training in bfloat16: `python -m benchmarks.precision [--prepare] [--works=mlp,transformer] [--pairs=9] [--losses]`

Each program trains the same networks from the same weights in a separate process, in float32 and in bfloat16. Runs
are interleaved. The first table has steps a second, and each program's ratio to its own float32. With `--losses`, a
second table compares the losses of shipped configurations. `--prepare` makes the peers' environments.
"""

import argparse
import contextlib
import os
import re
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.elsewhere import elsewhere
from benchmarks.environments import prepare, python_of
from benchmarks.machine import machine
from benchmarks.pairs import interleaved, ratio
from benchmarks.precision import losses
from benchmarks.precision.works import WORKS
from benchmarks.running import CHECKOUT

CPU_INFO = Path("/proc/cpuinfo")


class Program(NamedTuple):
    """A program in one dtype; `environment` is one of `benchmarks.environments`, None is Tapeloop's own."""

    what: str
    module: str
    variant: str
    environment: str | None = None


PROGRAMS = {
    "ours": Program("Tapeloop", "benchmarks.precision.ours", ""),
    "torch": Program("PyTorch, `autocast`", "benchmarks.precision.in_torch", "", "torch"),
    "keras": Program("Keras, `mixed_bfloat16`", "benchmarks.precision.in_keras", "", "keras"),
    "keras-xla": Program("Keras, `mixed_bfloat16`, XLA", "benchmarks.precision.in_keras", "-xla", "keras"),
}
DTYPES = ("float32", "bfloat16")


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the tables; returns 1 if a loss in bfloat16 differs too much."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--prepare", action="store_true", help="first make the environments that aren't there")
    parser.add_argument("--works", default=",".join(WORKS), help="of %(default)s (default: all)")
    parser.add_argument("--programs", default=",".join(PROGRAMS), help="of %(default)s (default: all)")
    parser.add_argument("--pairs", type=int, default=9, help="rounds of interleaved runs (default: 9)")
    parser.add_argument(
        "--losses",
        nargs="?",
        const=",".join(losses.CONFIGURATIONS),
        default="",
        help="also compare losses, of %(const)s (default: none; without a value: all, some ten minutes)",
    )
    parser.add_argument("--steps", type=int, default=300, help="of each training for its loss (default: 300)")
    parser.add_argument("--seeds", type=int, default=3, help="of each training for its loss (default: 3)")
    flags = parser.parse_args(arguments)
    for environment in {PROGRAMS[name].environment for name in flags.programs.split(",")} - {None}:
        if flags.prepare:
            prepare(str(environment))
    about, console = machine(), Console(width=120)
    print(f"{about['cores']} cores of {about['processor']}, TensorFlow {about['tensorflow']}: {instructions()}")
    for name in flags.works.split(",") if flags.works else ():
        console.print(speeds(name, flags.programs.split(","), flags.pairs))
    compared = flags.losses.split(",") if flags.losses else []
    return int(bool(compared) and not compare_losses(compared, console, steps=flags.steps, seeds=flags.seeds))


def instructions() -> str:
    """Says which instructions for bfloat16 the processor has."""
    text = CPU_INFO.read_text() if CPU_INFO.exists() else ""
    found = sorted(set(re.findall(r"\b(?:avx512_bf16|amx_bf16|bf16)\b", text)))
    return f"instructions for bfloat16: {', '.join(found)}" if found else "no instructions for bfloat16"


def speeds(name: str, programs: Sequence[str], pairs: int) -> Table:
    """Measures a work; returns its table."""
    work = WORKS[name]
    table = Table(
        "program", "float32, steps/s", "bfloat16, steps/s", "bfloat16 / float32", "95 % interval",
        title=f"{work.what}; target of Tapeloop: {work.target:.1f}",
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as scratch, contextlib.ExitStack() as stack:
        lay_out(name, Path(scratch))
        runs, missing = {}, list[str]()
        for key in programs:
            program = PROGRAMS[key]
            python = Path(sys.executable) if program.environment is None else python_of(program.environment)
            if python is None:
                missing.append(key)
                continue
            for dtype in DTYPES:
                command = [str(python), "-m", program.module, name, scratch, f"{dtype}{program.variant}"]
                runs[f"{key} {dtype}"] = stack.enter_context(elsewhere(command, CHECKOUT)).run
        seconds = interleaved(runs, pairs=pairs)
    for key in programs:
        if key in missing:
            table.add_row(PROGRAMS[key].what, "isn't installed: `--prepare` installs it")
            continue
        wide, narrow = (seconds[f"{key} {dtype}"] for dtype in DTYPES)
        faster, low, high = ratio(wide, narrow)
        rates = [f"{work.steps / np.median(x):.2f}" for x in (wide, narrow)]
        table.add_row(PROGRAMS[key].what, *rates, f"{faster:.2f}", f"{low:.2f} to {high:.2f}")
    return table


def lay_out(name: str, folder: Path) -> None:
    """Writes the data and the initial weights that all programs read."""
    from benchmarks.peers.laid_out import by_plain_name, save
    from benchmarks.peers.works import Arrays, tokens
    from benchmarks.precision.ours import make_experiment

    work, random = WORKS[name], np.random.RandomState(0)
    if work.sizes:
        rows = 8 * work.batch
        images = random.normal(size=[rows, work.sizes[0]]).astype(np.float32)
        arrays: Arrays = {"image": images, "label": random.randint(0, work.sizes[-1], rows).astype(np.int32)}
    else:
        arrays = tokens(32 * work.batch, work.context, work.vocabulary)
    save(folder / "data.npz", arrays)
    save(folder / "weights.npz", by_plain_name(make_experiment(name, arrays).task.parameters()))


def compare_losses(configurations: Sequence[str], console: Console, *, steps: int, seeds: int) -> bool:
    """Prints a line for each loss, and their table; returns whether all differ by at most `losses.ALLOWED`."""
    table = Table(
        "configuration", "loss", "float32", "bfloat16", "difference", "95 % interval", "float32, other order of sums",
        title=f"mean training loss of the last {losses.MEAN_OF} of {steps} steps, {seeds} seeds",
    )  # fmt: skip
    close = True
    for name, key, found in losses.rows(configurations, steps=steps, seeds=seeds):
        apart, noise = (losses.difference(found[way], found["float32"]) for way in ("bfloat16", "reordered"))
        close &= abs(apart[0]) <= losses.ALLOWED
        print(f"{name}, {key}: {apart[0]:+.2%} in bfloat16", flush=True)
        means = [f"{np.mean(found[way]):.4f}" for way in ("float32", "bfloat16")]
        intervals = [f"{low:+.1%} to {high:+.1%}" for _, low, high in (apart, noise)]
        table.add_row(name, key, *means, f"{apart[0]:+.2%}", intervals[0], f"{noise[0]:+.2%} ({intervals[1]})")
    console.print(table)
    return close


if __name__ == "__main__":
    sys.exit(main())
