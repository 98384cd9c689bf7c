"""Predicts scaling: `python -m benchmarks.simulate [--measure] [--stragglers=stragglers.json] [--write]`

Prints a small model's predictions for replicas, local steps, asynchronous training and meshes of up to 1,024 devices,
the measurements that it was fitted to, and its errors wherever it could be checked. `--write` updates these tables in
pages and notes, and the pictures. Only the trainings that `--measure` starts need TensorFlow.
"""

import argparse
import json
import signal
from pathlib import Path

from benchmarks import pages
from benchmarks.simulate import report
from benchmarks.simulate.measure import measure

MEASURED = Path(__file__).with_name("measured.json")


def main() -> None:
    """Measures if asked to; prints, or writes pages."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--measure", action="store_true", help="measure on this machine first, 5 minutes a round")
    parser.add_argument(
        "--stragglers", type=Path, help="file that `benchmarks.stragglers` wrote, to take into the other"
    )
    parser.add_argument("--rounds", type=int, default=3, help="of everything that is measured (default: 3)")
    parser.add_argument("--measured", type=Path, default=MEASURED, help="file of what was measured")
    parser.add_argument("--write", action="store_true", help="update the tables of pages and notes, and the pictures")
    flags = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that every started process ends
    measured = json.loads(flags.measured.read_text()) if flags.measured.exists() else {}
    if flags.measure:
        # A separate file until it is complete: an interrupted measurement resumes.
        begun = flags.measured.with_suffix(".begun")
        measured |= measure(begun, rounds=flags.rounds)
    if flags.stragglers:
        measured["stragglers"] = json.loads(flags.stragglers.read_text())
    if flags.measure or flags.stragglers:
        flags.measured.write_text(json.dumps(measured, indent=1) + "\n")
    if flags.measure:
        begun.unlink()
    tables = report.tables(measured)
    if flags.write:
        pages.write(tables, report.pictures(measured))
    else:
        print("\n".join(f"{name}\n\n{rows}" for name, rows in tables.items()))


if __name__ == "__main__":
    main()
