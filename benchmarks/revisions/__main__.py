"""`python -m benchmarks.revisions --against=REVISION [--works NAME ...] [--pairs=100]`: a step's time then and now.

Each work of `benchmarks.step_time` and `benchmarks.adversarial` is trained by both revisions' own trainers, each in a
process of its own, in turns. Beside the ratio of the times stands how many operations the traced chunks hold.
"""

import argparse
import contextlib
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.checkout import CHECKOUT, checkout_of
from benchmarks.pairs import interleaved, ratio

WORKS = ("digits_mlp", "mnist_mlp", "gan", "cyclegan")


class Side:
    """One revision's trainer elsewhere, which trains when asked to."""

    def __init__(self, process: subprocess.Popen[str]):
        self._process = process
        self.operations = int(self._answer())

    def run(self) -> float:
        """Trains once and returns the seconds that it took there."""
        assert self._process.stdin
        print(file=self._process.stdin, flush=True)
        return float(self._answer())

    def _answer(self) -> str:
        assert self._process.stdout
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"error: `{self._process.args!r}` ended with {self._process.wait()}")
        return line


@contextlib.contextmanager
def side(checkout: Path, work: str) -> Iterator[Side]:
    """Keeps one side running until the block ends."""
    command = [sys.executable, str(Path(__file__).with_name("side.py")), str(checkout), work]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=checkout, stdin=pipe, stdout=pipe, text=True) as process:
        try:
            yield Side(process)
        finally:
            process.kill()


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints one row per work."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.revisions", description=__doc__.partition("\n\n")[2])
    parser.add_argument("--against", required=True, metavar="REVISION", help="what git calls the other side")
    parser.add_argument("--works", nargs="+", choices=WORKS, default=WORKS, metavar="NAME", help=", ".join(WORKS))
    parser.add_argument("--pairs", type=int, default=100, help="rounds of interleaved runs (default: 100)")
    flags = parser.parse_args(arguments)
    table = Table("work", "time now over then", "95 % interval", "operations then", "operations now")
    with tempfile.TemporaryDirectory() as scratch, checkout_of(flags.against, Path(scratch)) as other:
        for work in flags.works:
            with side(CHECKOUT, work) as now, side(other, work) as then:
                seconds = interleaved({"now": now.run, "then": then.run}, pairs=flags.pairs)
                median, low, high = ratio(seconds["now"], seconds["then"])
                counts = (str(then.operations), str(now.operations))
            table.add_row(work, f"{median:.3f}", f"{low:.3f} to {high:.3f}", *counts)
            print(f"{work}: {median:.3f} [{low:.3f}, {high:.3f}]", flush=True)
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
