"""`python -m benchmarks.revisions --against=REVISION [--works NAME ...] [--pairs=100]`: compares two revisions' times.

Both revisions train the works of `benchmarks.step_time` and `benchmarks.adversarial` with their own trainers, and run
the `layers` and `optimizers` of the benchmarks of that name with their own code. The two sides take turns in separate
processes. The table also counts the traced operations.
"""

import argparse
import contextlib
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.checkout import CHECKOUT, checkout_of
from benchmarks.elsewhere import elsewhere
from benchmarks.pairs import interleaved, ratio

WORKS = ("digits_mlp", "mnist_mlp", "gan", "cyclegan", "layers", "optimizers")


def parts(works: Sequence[str]) -> Iterator[str]:
    """Lists the parts to measure: a work, or `layers/BatchNorm` and the like."""
    for work in works:
        if work in ("layers", "optimizers"):
            from benchmarks.revisions.parts import CASES

            yield from (f"{work}/{name}" for name in CASES[work])
        else:
            yield work


class Found(NamedTuple):
    """Seconds of one work and its number of traced operations, at both revisions."""

    now: np.ndarray
    then: np.ndarray
    operations: tuple[str, str]


def compared(part: str, checkouts: Mapping[str, Path], pairs: int) -> Found:
    """Measures both revisions in turns; after half the pairs new processes start, in the other order.

    With equal code, the process that starts first may differ by a tenth.
    """
    seconds: dict[str, list[np.ndarray]] = {"now": [], "then": []}
    command = [sys.executable, str(Path(__file__).with_name("side.py"))]
    for order in (("now", "then"), ("then", "now")):
        with contextlib.ExitStack() as processes:
            sides = {
                name: processes.enter_context(elsewhere([*command, str(checkouts[name]), part], checkouts[name]))
                for name in order
            }
            runs = {name: side.run for name, side in sides.items()}
            for name, measured in interleaved(runs, pairs=max(1, pairs // 2)).items():
                seconds[name].append(measured)
    now, then = (np.concatenate(seconds[name]) for name in ("now", "then"))
    return Found(now, then, (str(sides["then"].size), str(sides["now"].size)))


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints one row per work."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.revisions", description=__doc__.partition("\n\n")[2])
    parser.add_argument("--against", required=True, metavar="REVISION", help="the git revision to compare with")
    parser.add_argument("--works", nargs="+", choices=WORKS, default=WORKS, metavar="NAME", help=", ".join(WORKS))
    parser.add_argument("--pairs", type=int, default=100, help="rounds of interleaved runs (default: 100)")
    flags = parser.parse_args(arguments)
    table = Table("work", "time now over then", "95 % interval", "operations then", "operations now")
    with tempfile.TemporaryDirectory() as scratch, checkout_of(flags.against, Path(scratch)) as other:
        for part in parts(flags.works):
            found = compared(part, {"now": CHECKOUT, "then": other}, flags.pairs)
            median, low, high = ratio(found.now, found.then)
            table.add_row(part, f"{median:.3f}", f"{low:.3f} to {high:.3f}", *found.operations)
            print(
                f"{part}: {median:.3f} [{low:.3f}, {high:.3f}], operations {' -> '.join(found.operations)}", flush=True
            )
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
