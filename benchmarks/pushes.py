"""Overhead of asynchronous training per step: `python -m benchmarks.pushes [--page=benchmarks/notes/asynchronous.md]`.

One worker and one server take small steps, and one process takes the same steps, in alternating runs. The difference of
two neighbouring runs is a step's overhead: scheduling it, pulling the weights, and pushing gradients.
"""

import argparse
import statistics
from pathlib import Path

from benchmarks.machine import machine
from benchmarks.pages import table, written
from benchmarks.running import running

RUNTIME = "configs/runtime/parameter_server.gin"
LOGGED = {0: 100, 1_000_000: 20, 8_000_000: 5}  # steps of a metric line, by parameters next to a matrix of 65,536
SECONDS = 3.0


def main() -> None:
    """Prints a table, and writes it into a page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=3, help="runs of each kind")
    parser.add_argument("--page", type=Path, help="page that has this table")
    flags = parser.parse_args()
    about, rows = machine(), []
    for ballast in LOGGED:
        alone, served = [], []
        for _ in range(flags.pairs):
            alone.append(milliseconds([], [], ballast))
            served.append(milliseconds(["--workers=1", "--ps=1"], [RUNTIME], ballast))
        differences = [y - x for x, y in zip(alone, served, strict=True)]
        each = (f"{statistics.median(values):.1f} ms" for values in (alone, served, differences))
        over_all = f"{min(differences):.1f} to {max(differences):.1f} ms"
        rows.append([f"{65_536 + max(1, ballast):,}", *each, over_all])
        print(rows[-1], flush=True)
    head = ["parameters", "a step in one process", "by one worker and one server", "the difference", "over all pairs"]
    processor, load, version = about["processor"], about["load_before"], about["tensorflow"]
    measured = (
        f"Medians of {flags.pairs} pairs: {processor}, {about['cores']} cores, load {load}, TensorFlow {version}.\n"
    )
    found = f"{table(head, rows)}\n{measured}"
    print(found)
    if flags.page:
        flags.page.write_text(written(flags.page.read_text(), {"pushes": found}))


def milliseconds(launch: list[str], gin_files: list[str], ballast: int) -> float:
    """Returns the time of one step."""
    settings = {"Work.products": 1, "Work.ballast": ballast, "Trainer.log_every": LOGGED[ballast]}
    with running(launch, settings, gin_files=gin_files) as run:
        run.speed(1.0)  # the first steps are slower
        return 1000.0 / run.speed(SECONDS)


if __name__ == "__main__":
    main()
