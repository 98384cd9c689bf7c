"""`python -m tools.mutants.redundant W/contexts/COMMIT`: names plain tests that reach no line of their own.

It reads the contexts that `tools.mutants` keeps in its workdir. Beginning with the dearest test function, it names one
if every line that its cases run is also run by a plain test that stays. Such a test may still compare numbers as no
other does: read it, before you mark it `long`.
"""

import argparse
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tools.mutants.contexts import Reach, load


def main() -> int:
    """Prints processor seconds, cases and name of each such test function."""
    parser = argparse.ArgumentParser(prog="python -m tools.mutants.redundant", description=__doc__.split(": ", 1)[1])
    parser.add_argument("contexts", type=Path, help="a folder of contexts in a workdir of `tools.mutants`")
    parser.add_argument("--least", type=float, default=1.0, metavar="SECONDS", help="of the functions to look at")
    flags = parser.parse_args()
    found = redundant(map(load, sorted(flags.contexts.glob("*.json.gz"))), flags.least)
    for name, (seconds, cases) in found.items():
        print(f"{seconds:6.1f} s {cases:4d} {name}")
    return 0


def redundant(kept: Iterable[Mapping[str, Any]], least: float) -> dict[str, tuple[float, int]]:
    """Returns processor seconds and cases of each plain test function that reaches no line of its own."""
    reach = Reach(Path(), [], kept)
    plain = {test.id: test for test in reach.tests.values() if not test.long}
    costs, cases = defaultdict[str, float](float), Counter[str]()
    for test in plain.values():
        costs[_function(test.id)] += test.seconds
        cases[_function(test.id)] += 1
    lines = defaultdict[str, set[tuple[str, int]]](set)
    for file, by_line in reach.lines.items():
        for line, tests in by_line.items():
            for name in tests & plain.keys():
                lines[_function(name)].add((file, line))
    users = Counter(line for own in lines.values() for line in own)
    found = {}
    for name in sorted(costs, key=lambda name: -costs[name]):
        if costs[name] >= least and all(users[line] > 1 for line in lines[name]):
            users.subtract(lines[name])
            found[name] = (costs[name], cases[name])
    return found


def _function(test: str) -> str:
    return test.partition("[")[0]


if __name__ == "__main__":
    sys.exit(main())
