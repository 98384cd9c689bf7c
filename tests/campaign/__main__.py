"""`python -m tests.campaign [--seed=N] [--parts kills damage ...] [--short]`: what can't be broken, tried out.

One small run, through the real command, is killed, stopped, damaged and starved in every way that the parts name, and
must end in the bits of the one that nothing disturbed. Prints a table; fails on anything lost, a traceback, a hang or
a wrong exit code, each with the command that repeats it. All takes 25 minutes or so on two cores.
"""

import argparse
import concurrent.futures
import importlib
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from rich.console import Console
from rich.table import Table

from tests.campaign.lab import Bench, Case, HungError, Lab, Tally

PARTS = {
    "kills": "SIGKILL at marks, in saves, at random",
    "signals": "each signal in each section",
    "damage": "each file of a workdir damaged",
    "room": "a full disk, from each change on",
    "nan": "NaN in data, gradients, slots, a replica",
    "mutants": "nonsense for each reader",
    "workers": "launched workers killed and stopped",
}
PROGRESS_SECONDS = 20.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Tries all out, prints what came of it, and returns 1 if anything failed."""
    flags = _parse(sys.argv[1:] if arguments is None else arguments)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch:
        lab = Lab(Path(scratch), flags.seed, short=flags.short)
        lab.prepare()
        print(f"seed {flags.seed}; undisturbed: {lab.seconds:.1f} s, {len(lab.marks)} marks", flush=True)
        tallies = {part: run_part(lab, part, flags.only) for part in flags.parts}
    print_table(tallies, markdown=flags.markdown)
    return 1 if any(tally.failures for tally in tallies.values()) else 0


def run_part(lab: Lab, part: str, only: str) -> Tally:
    """Runs the cases of one part, two at a time."""
    tally = Tally()
    cases = [case for case in importlib.import_module(f"tests.campaign.{part}").cases(lab) if only in case.name]
    said = began = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count() or 1) as threads:
        running = [threads.submit(run_case, lab, part, case, tally) for case in cases]
        for done, _ in enumerate(concurrent.futures.as_completed(running), start=1):
            if time.monotonic() - said > PROGRESS_SECONDS:
                said = time.monotonic()
                failed = f"{len(tally.failures)} failures, {said - began:.0f} s"
                print(f"{part}: {done} of {len(cases)} cases, {tally.tried} tried, {failed}", flush=True)
    return tally


def run_case(lab: Lab, part: str, case: Case, tally: Tally) -> None:
    """Runs one case; whatever goes wrong in it is a failure of this case, and the others go on."""
    short = " --short" if lab.short else ""
    repeat = f"python -m tests.campaign --seed={lab.seed} --parts {part} --only='{case.name}'{short}"
    bench = Bench(lab, case.name, tally, repeat)
    try:
        case.check(bench)
    except HungError as error:
        bench.fail(str(error))
    except Exception as error:
        bench.fail(f"the case itself broke: {error!r}")
    shutil.rmtree(bench.folder, ignore_errors=True)


def print_table(tallies: Mapping[str, Tally], *, markdown: bool) -> None:
    """Prints a line for each part."""
    columns = ("part", "what", "tried", "how it ended", "failures")
    rows = [
        (part, PARTS[part], str(tally.tried), _outcomes(tally), str(len(tally.failures)))
        for part, tally in tallies.items()
    ]
    if markdown:
        lines = [columns, ["---"] * len(columns), *rows]
        print(*(f"| {' | '.join(line)} |" for line in lines), sep="\n")
        return
    table = Table(*columns)
    for row in rows:
        table.add_row(*row)
    Console(width=150).print(table)


def _outcomes(tally: Tally) -> str:
    return "; ".join(f"{count} {outcome}" for outcome, count in sorted(tally.outcomes.items()))


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.campaign", description=__doc__.partition("\n\n")[2])
    parser.add_argument("--seed", type=int, default=0, help="of all random moments, bits and bytes (default: 0)")
    parser.add_argument("--parts", nargs="+", choices=list(PARTS), default=list(PARTS), metavar="PART")
    parser.add_argument("--only", default="", metavar="TEXT", help="the cases whose name holds it")
    parser.add_argument("--short", action="store_true", help="a few of each part")
    parser.add_argument("--markdown", action="store_true", help="print the table as Markdown")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
