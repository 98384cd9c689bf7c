"""`python -m tools.invariance [--configs NAME ...] [--steps 20]`: 1, 2, 4 replicas by 1, 2, 4 microbatches, and meshes.

Trains every shipped configuration and two further tasks on a global batch of 16, in all nine combinations and on meshes
of 1x2, 2x1, 2x2 and 4x2 devices. Variables must end within 1e-5 of each other, losses and metrics within 1e-6; replicas
reduce the gradients of each update once. A task that can't run on a mesh must raise the expected error. Dropout is on
wherever a task allows it; the command prints its changes to configurations (`subjects.py` says why).
"""

import argparse
import functools
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from rich.console import Console
from rich.table import Table

from core.distribution.virtual_devices import make_virtual_cpus
from core.errors import did_you_mean
from tools.invariance.campaign import COUNTS, FIGURES, MESHES, VARIABLES, Row, measure
from tools.invariance.subjects import TOYS, config_names, subject


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures, prints a table, and returns 1 if anything exceeds its tolerance."""
    known = [*config_names(), *TOYS]
    flags = _parse(sys.argv[1:] if arguments is None else arguments, known)
    make_virtual_cpus(max(*COUNTS, *(batch * model for batch, model in MESHES)))  # before anything else uses TensorFlow
    rows = []
    for name in flags.configs or known:
        print(f"{name}: being built", flush=True)  # names of tasks that can't be built must be known too
        with tempfile.TemporaryDirectory() as scratch:
            made = subject(name, Path(scratch))
            if made.changes:
                print(f"{name}: with {'; '.join(made.changes)}", flush=True)
            rows.append(measure(made, meshes=MESHES, steps=flags.steps, report=functools.partial(print, flush=True)))
    print_table(rows)
    problems = [f"{row.name}: {problem}" for row in rows for problem in row.problems]
    print(*problems, sep="\n", end="\n" if problems else "")
    print(f"{len(rows) - sum(bool(row.problems) for row in rows)} of {len(rows)} are the same in all combinations")
    return 1 if problems else 0


def print_table(rows: Sequence[Row]) -> None:
    """Prints one line per subject."""
    columns = (f"variables (of {VARIABLES:.0e})", f"figures (of {FIGURES:.0e})", "reductions an update", "meshes")
    table = Table("what", "steps in a row", *columns, "verdict")
    table.caption = "the largest difference after any step (where; replicas x microbatches)"
    for row in rows:
        reductions = ", ".join(f"{name} {' or '.join(map(str, sorted(n)))}" for name, n in row.reductions.items())
        verdict = "differs" if row.problems else "the same"
        in_a_row = f"{row.in_a_row} of {row.steps}" + (f", {len(row.at_edges)} at an edge" if row.at_edges else "")
        table.add_row(row.name, in_a_row, str(row.variables), str(row.figures), reductions, _meshes(row), verdict)
    Console(width=150).print(table)


def _meshes(row: Row) -> str:
    refused = [f"refused: {', '.join(row.refused)}"] if row.refused else []
    return "; ".join([", ".join(row.meshes), *refused] if row.meshes else refused)


def _parse(arguments: Sequence[str], known: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tools.invariance", description=__doc__.partition("\n\n")[2])
    parser.add_argument("--configs", nargs="+", metavar="NAME", help=f"some of {', '.join(known)} (default: all)")
    parser.add_argument("--steps", type=int, default=20, help="how many to train (default: 20)")
    flags = parser.parse_args(arguments)
    for name in flags.configs or ():
        if name not in known:
            parser.error(f"`--configs` names {name!r}; there are {', '.join(known)}.{did_you_mean(name, known)}")
    if flags.steps < 1:
        parser.error(f"`--steps` is {flags.steps}; it takes one to see a difference: give 1 or more.")
    return flags


if __name__ == "__main__":
    sys.exit(main())
