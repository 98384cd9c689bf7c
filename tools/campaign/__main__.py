"""`python -m tools.campaign [--seed=N] [--parts kills damage ...] [--short]`: tests recovery from faults.

One small run with the real command is killed, stopped, damaged and starved in every way that the parts name. It must
end with the same bits as an undisturbed run. Prints a table; fails on lost data, a traceback, a hang or a wrong exit
code, and prints the command that repeats it. All parts take about 25 minutes on two cores.
"""

import argparse
import concurrent.futures
import contextlib
import importlib
import os
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from tests.commands import let_children_hear
from tools.campaign.lab import Bench, Case, HungError, Lab
from tools.campaign.report import Tally, print_table

PARTS = ("kills", "signals", "damage", "room", "nan", "mutants", "workers", "served")
LEAST = {"kills": 200, "mutants": 2000}  # trials: the full campaign must run at least as many
PROGRESS_SECONDS = 20.0
TOGETHER = 2  # cases; one in the short campaign, where a second server would import for longer than it serves


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the parts, prints the table, and returns 1 if anything failed."""
    flags = _parse(sys.argv[1:] if arguments is None else arguments)
    let_children_hear()
    began = time.monotonic()
    with contextlib.ExitStack() as stack:
        scratch = stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True))
        lab = stack.enter_context(contextlib.closing(Lab(Path(scratch), flags.seed, short=flags.short)))
        lab.prepare()
        print(f"seed {flags.seed}; undisturbed: {lab.seconds:.1f} s, {len(lab.marks)} marks", flush=True)
        tallies = {part: run_part(lab, part, flags.only) for part in flags.parts}
    print_table(tallies, markdown=flags.markdown)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(f"\n{time.monotonic() - began:.0f} s, {used.ru_utime + used.ru_stime:.0f} CPU seconds")
    return 1 if any(tally.failures for tally in tallies.values()) else 0


def run_part(lab: Lab, part: str, only: str) -> Tally:
    """Runs the cases of one part, two at a time unless the campaign is short."""
    try:
        cases = [case for case in importlib.import_module(f"tools.campaign.{part}").cases(lab) if only in case.name]
    except Exception as error:
        tally = Tally()
        tally.fail("all", f"{part}: its cases can't be listed: {error!r}")
        return tally
    tally = Tally([case.row for case in cases])
    said = began = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(1 if lab.short else TOGETHER) as threads:
        running = [threads.submit(run_case, lab, part, case, tally) for case in cases]
        for done, _ in enumerate(concurrent.futures.as_completed(running), start=1):
            if time.monotonic() - said > PROGRESS_SECONDS or done == len(cases):
                said = time.monotonic()
                failed = f"{len(tally.failures)} failures, {said - began:.0f} s"
                print(f"{part}: {done} of {len(cases)} cases, {tally.tried} tried, {failed}", flush=True)
    least = 0 if lab.short or only else LEAST.get(part, 0)
    if tally.tried < least:
        tally.fail("all", f"{part}: {tally.tried} tried, at least {least} are required")
    return tally


def run_case(lab: Lab, part: str, case: Case, tally: Tally) -> None:
    """Runs one case; an exception in it counts as a failure of this case alone."""
    short = " --short" if lab.short else ""
    repeat = f"python -m tools.campaign --seed={lab.seed} --parts {part} --only='{case.name}'{short}"
    bench = Bench(lab, case, tally, repeat)
    try:
        case.check(bench)
    except HungError as error:
        bench.fail(str(error))
    except Exception as error:
        bench.fail(f"the case itself failed: {error!r}")
    shutil.rmtree(bench.folder, ignore_errors=True)


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tools.campaign", description=__doc__.partition("\n\n")[2])
    parser.add_argument("--seed", type=int, default=0, help="of all random moments, bits and bytes (default: 0)")
    parser.add_argument("--parts", nargs="+", choices=list(PARTS), default=list(PARTS), metavar="PART")
    parser.add_argument("--only", default="", metavar="TEXT", help="the cases whose name holds it")
    parser.add_argument("--short", action="store_true", help="a few of each part")
    parser.add_argument("--markdown", action="store_true", help="print the table as Markdown")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
