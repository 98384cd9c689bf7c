"""Cost of one slow worker of two: `python -m benchmarks.stragglers [--rounds=2] [--json=stragglers.json]`

Runs synchronous training, local steps and asynchronous training with the real commands, at steps of 3, 30 and 300 ms.
In each run the second worker alternates between full speed and a fifth of it: `benchmarks/slowed.py` stops it most of
the time, as if others used its machine. The table shows the slowed rate over the rate just before; one process alone
shows how slow that was. Measurements that the file already has aren't repeated.
"""

import argparse
import json
import signal
import statistics
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.chart import Panel, svg
from benchmarks.machine import load, machine
from benchmarks.pages import table
from benchmarks.running import running
from benchmarks.slowed import slowed

ROWS = 512  # of a worker's step
SLOWER = 5.0
MILLISECONDS = (3, 30, 300)
TRIED = 20  # products, to time one step
LOCAL_STEPS = 10
LOGGED = 40 * ROWS  # rows of a metric line, at least, and so many seconds: all workers have to reach each line
LOGGED_SECONDS = 3.0
LEAST_SECONDS = 3.0  # of a turn, and of the trial
MULTI_WORKER = "configs/runtime/multi_worker.gin"
PARAMETER_SERVER = "configs/runtime/parameter_server.gin"

Found = dict[str, Any]


class Mode(NamedTuple):
    """A way to train, and the process that is slowed."""

    slowed: str | None = "worker 1"  # `None`: the only process
    launch: tuple[str, ...] = ("--workers=2",)
    gin_files: tuple[str, ...] = (MULTI_WORKER,)
    rows: int = 2 * ROWS  # of a step as it is counted
    local_steps: int | None = None


MODES = {
    "one process": Mode(slowed=None, launch=(), gin_files=(), rows=ROWS),
    "synchronous": Mode(),
    f"local steps, {LOCAL_STEPS} a round": Mode(local_steps=LOCAL_STEPS),
    "asynchronous": Mode(launch=("--workers=2", "--ps=1"), gin_files=(PARAMETER_SERVER,), rows=ROWS),
}


def main() -> None:
    """Measures what the file lacks, and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=2, help="turns of each run (default: 2)")
    parser.add_argument("--json", type=Path, default=Path("stragglers.json"), help="file of what was found")
    parser.add_argument("--picture", type=Path, help="file to draw it into, as SVG")
    parser.add_argument("--only", nargs="+", choices=MODES, default=list(MODES), help="ways to train (default: all)")
    parser.add_argument(
        "--ms", nargs="+", type=int, choices=MILLISECONDS, default=MILLISECONDS, help="of a step (default: all)"
    )
    flags = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that every started process ends
    found = measure(flags.json, modes=flags.only, milliseconds=flags.ms, rounds=flags.rounds)
    print(rows_of(found))
    if flags.picture:
        flags.picture.write_text(picture(found))


def measure(path: Path, *, modes: list[str], milliseconds: list[int], rounds: int) -> Found:
    """Measures what `path` lacks, adds it there, and returns the content."""
    found: Found = json.loads(path.read_text()) if path.exists() else {"machine": machine(), "runs": {}}
    if "products_per_ms" not in found:
        found["products_per_ms"] = TRIED / (1e3 * _seconds_of(TRIED))
    for ms in milliseconds:
        for name in modes:
            if f"{name}, {ms} ms" in found["runs"]:
                continue
            found["runs"][f"{name}, {ms} ms"] = run = turns(MODES[name], ms, found["products_per_ms"], rounds)
            found["machine"]["highest_load"] = max(found["machine"]["highest_load"], load())
            path.write_text(json.dumps(found, indent=1) + "\n")
            print(f"{name}, {ms} ms: {statistics.median(kept(run)):.2f} kept", flush=True)
    return found


def turns(mode: Mode, ms: int, products_per_ms: float, rounds: int) -> Found:
    """Returns rates without and with a slow worker, in steps of `ROWS` rows a second, and how much a step computes."""
    products = max(1, round(ms * products_per_ms))
    settings = {
        "Work.products": products,
        "Trainer.global_batch_size": mode.rows,
        "Trainer.log_every": max(round(1e3 * LOGGED_SECONDS / ms), LOGGED // mode.rows),
    }
    if mode.local_steps:
        settings["Trainer.local_steps"] = mode.local_steps
    seconds = max(LEAST_SECONDS, 0.02 * ms)
    even, slow = [], []
    with running(mode.launch, settings, gin_files=mode.gin_files) as run:
        run.speed(seconds)  # all have started and warmed up
        pid = run.pid(mode.slowed) if mode.slowed else run.process.pid
        for _ in range(rounds):
            even.append(run.speed(seconds) * mode.rows / ROWS)
            with slowed(pid, SLOWER):
                slow.append(run.speed(seconds) * mode.rows / ROWS)
    return {"products": products, "even": even, "slow": slow}


def rows_of(found: Found) -> str:
    """Returns the table as Markdown."""
    rows = []
    for name, run in _in_order(found).items():
        parts = kept(run)
        even, slow = (f"{statistics.median(run[key]):.1f}" for key in ("even", "slow"))
        rows.append(
            [
                name,
                str(run["products"]),
                even,
                slow,
                f"{statistics.median(parts):.2f}",
                f"{min(parts):.2f} to {max(parts):.2f}",
            ]
        )
    return table(["", "products", "steps a second", "one slowed", "kept", "over all turns"], rows)


def picture(found: Found) -> str:
    """Draws the rates that are kept over the time of a step."""
    lines: dict[str, list[tuple[float, float]]] = {}
    for name, run in _in_order(found).items():
        mode, _, time = name.rpartition(", ")
        lines.setdefault(mode, []).append((float(time.removesuffix(" ms")), statistics.median(kept(run))))
    panel = Panel("One of two workers is five times slower", lines, MILLISECONDS, "ms a step")
    return svg([panel], upright="part of the rate that is kept")


def kept(run: Found) -> list[float]:
    return [slow / even for even, slow in zip(run["even"], run["slow"], strict=True)]


def _in_order(found: Found) -> Found:
    names = [f"{mode}, {ms} ms" for mode in MODES for ms in MILLISECONDS]
    return {name: found["runs"][name] for name in names if name in found["runs"]}


def _seconds_of(products: int) -> float:
    settings = {"Work.products": products, "Trainer.global_batch_size": ROWS, "Trainer.log_every": 5}
    with running([], settings) as run:
        run.speed(1.0)  # it has started and warmed up
        return run.cpu_seconds(LEAST_SECONDS)


if __name__ == "__main__":
    main()
