"""What asynchronous training adds to a step: `python -m benchmarks.pushes`.

The same small steps are taken by one worker and one server, and in one process, one run after the other, several times.
The difference of two neighbours is what a step's way costs: to be handed out, to pull the weights, and to push.
"""

import argparse
import statistics

from benchmarks.running import running

RUNTIME = "configs/runtime/parameter_server.gin"
SETTINGS = {"Work.products": 1, "Trainer.log_every": 50}
PARAMETERS = (0, 1_000_000)  # beside a matrix of 65,536
SECONDS = 5.0


def main() -> None:
    """Prints a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=5, help="runs of each kind")
    pairs = parser.parse_args().pairs
    print(
        "| parameters | a step in one process | by one worker and one server | the difference |\n"
        "| --- | --- | --- | --- |"
    )
    for ballast in PARAMETERS:
        alone, served = [], []
        for _ in range(pairs):
            alone.append(milliseconds([], [], ballast))
            served.append(milliseconds(["--workers=1", "--ps=1"], [RUNTIME], ballast))
        differences = [y - x for x, y in zip(alone, served, strict=True)]
        each = (statistics.median(values) for values in (alone, served, differences))
        print(f"| {65_536 + max(1, ballast):,} | " + " | ".join(f"{value:.1f} ms" for value in each) + " |", flush=True)


def milliseconds(launch: list[str], gin_files: list[str], ballast: int) -> float:
    """Returns what one step takes."""
    with running(launch, {**SETTINGS, "Work.ballast": ballast}, gin_files=gin_files) as run:
        run.speed(1.0)  # the first steps are slower
        return 1000.0 / run.speed(SECONDS)


if __name__ == "__main__":
    main()
