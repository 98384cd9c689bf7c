"""`python -m tools.mutants`: plants mistakes in the product code, and counts those that the tests catch.

Mistakes are constants, comparisons, signs, dropped statements, swapped arguments, and off by one. Each is planted in a
copy of a commit, in a folder of `--workdir`; the tests that reach its line run, cheapest first, until one fails:

    python -m tools.mutants --workdir=W --count=400 --against=d7194db --long

compares two suites: the same mutants, each judged by a commit's tests in that commit's code. The workdir keeps
the results, so that the same command resumes: contexts (which tests run a line) and a line of JSON per verdict.
"""

import argparse
import fcntl
import functools
import hashlib
import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from rich.console import Console

from tools.mutants import contexts, run, table
from tools.mutants.edits import Mutant
from tools.mutants.edits import mutants as planted
from tools.mutants.plant import FOLDERS, KINDS, chosen, sources
from tools.mutants.trees import Tree, commit

Say = Callable[[str], None]


def main() -> int:
    """Judges the mutants that the flags select; returns 1 if the suite catches fewer than the other one."""
    flags = _flags()
    console = Console(highlight=False, soft_wrap=True)
    say: Say = functools.partial(console.print, markup=False)
    revisions = [flags.revision, *([flags.against] if flags.against else [])]
    flags.workdir.mkdir(parents=True, exist_ok=True)
    lock = (flags.workdir / "lock").open("w")  # closed with the process
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise SystemExit(f"error: another command works in `{flags.workdir}`; wait for it or name another.") from None
    copies = {
        sha: [Tree(flags.workdir / f"{sha[:10]}-{n}", sha) for n in range(flags.processes)]
        for sha in map(commit, revisions)
    }
    try:
        texts = [_below(sources(trees[0].tree), flags.only) for trees in copies.values()]
        mutants = chosen(texts[0], count=flags.count, seed=flags.seed, kinds=flags.kinds, shared=texts[1:])
        mutants = [x for x in mutants if not flags.keys or x.key in flags.keys]
        if flags.list:
            for x in mutants:
                say(f"{x.key} {x.path}:{x.first} {x.kind} {x.before.strip()!r} -> {x.after.strip()!r}")
            return 0
        suites = []
        for (sha, trees), tree_texts in zip(copies.items(), texts, strict=True):
            here = {x.key: x for path in {y.path for y in mutants} for x in planted(path, tree_texts[path])}
            suites.append(_judged(flags, say, sha, trees, [here[x.key] for x in mutants]))
    finally:
        for trees in copies.values():
            for tree in trees:
                tree.close()
    console.print(table.table([x[:12] for x in revisions], suites, flags.long))
    for verdict in suites[0].values():
        if not table.caught(verdict, flags.long):
            say(table.line(verdict))
    return _compared(flags, say, suites[0], suites[1]) if len(suites) > 1 else 0


def _compared(
    flags: argparse.Namespace, say: Say, new: Mapping[str, run.Verdict], old: Mapping[str, run.Verdict]
) -> int:
    missed = table.lost(new, old, flags.long)
    say(f"\n{len(missed)} mutants that {flags.revision} misses and {flags.against} catches:")
    for mine, other in missed:
        say(f"{mine.key} {table.line(mine)}; caught by {other.by}")
    counts = [list(table.rows([new, old], which))[-1][2] for which in {False, flags.long}]
    return int(any(mine < other for mine, other in counts))


def _judged(
    flags: argparse.Namespace, say: Say, sha: str, trees: Sequence[Tree], mutants: Sequence[Mutant]
) -> dict[str, run.Verdict]:
    """Judges the mutants that have no verdict yet with a commit's tests; returns all verdicts."""
    settings = json.dumps([flags.tests, flags.most, flags.long, flags.mirror])
    digest = hashlib.sha256(settings.encode()).hexdigest()[:6]
    target = flags.workdir / f"verdicts-{sha[:10]}-{digest}.jsonl"
    done = run.read(target)
    left = [x for x in mutants if x.key not in done]
    if left:
        reach, sound = _reach(flags, say, sha, trees), dict[str, bool]()
        judges = {id(x): run.Judge(x, reach, sound, flags.most, flags.long) for x in trees}
        counts, begun = Counter(done[x.key].verdict for x in mutants if x.key in done), time.monotonic()
        with target.open("a") as file:
            for at, verdict in enumerate(run.each(trees, left, lambda x, mutant: judges[id(x)].verdict(mutant)), 1):
                file.write(f"{json.dumps(verdict._asdict())}\n")
                file.flush()
                done[verdict.key] = verdict
                counts[verdict.verdict] += 1
                told = ", ".join(f"{n} {kind}" for kind, n in counts.items())
                say(f"{sha[:7]} {at}/{len(left)}, {time.monotonic() - begun:.0f} s ({told}): {table.line(verdict)}")
    return {x.key: done[x.key] for x in mutants}


def _reach(flags: argparse.Namespace, say: Say, sha: str, trees: Sequence[Tree]) -> contexts.Reach:
    """Returns which tests run which lines of a commit; measures those missing from the cache."""
    files = contexts.test_files(trees[0].tree, flags.tests)
    cache = (flags.cache or flags.workdir / "contexts") / sha[:10]
    parts = [
        (chunk, long, contexts.chunk_file(cache, chunk, long))
        for chunk in contexts.chunks(files)
        for long in {False, flags.long}
    ]
    missing = [] if flags.mirror else [part for part in parts if not part[2].exists()]
    begun = time.monotonic()

    def measure(tree: Tree, part: tuple[list[str], bool, Path]) -> str:
        whole = contexts.measure(tree, part[0], part[2], part[1])
        return part[0][0] + ("" if whole else ": not whole, so that mutants take its files by folder and imports")

    for at, name in enumerate(run.each(trees, missing, measure), 1):
        say(f"{sha[:7]} contexts {at}/{len(missing)}, {time.monotonic() - begun:.0f} s: {name}")
    reach = contexts.Reach(trees[0].tree, files, [contexts.load(path) for _, _, path in parts if path.exists()])
    if reach.failing:
        say(f"{sha[:7]}: left out, as they fail without a mutant: {sorted(reach.failing)}")
    return reach


def _below(texts: Mapping[str, str], folders: Sequence[str]) -> dict[str, str]:
    return {path: x for path, x in texts.items() if any(f"{path}/".startswith(f"{y.rstrip('/')}/") for y in folders)}


def _flags() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tools.mutants", description=__doc__.splitlines()[0])
    parser.add_argument(
        "--workdir", type=Path, required=True, help="verdicts, contexts and copies; an earlier run resumes"
    )
    parser.add_argument("--cache", type=Path, help="contexts, if not in the workdir")
    parser.add_argument("--count", type=int, default=400, help="mutants over all folders")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS), metavar="KIND")
    parser.add_argument("--only", nargs="+", default=list(FOLDERS), metavar="PATH", help="folders or files to plant in")
    parser.add_argument("--keys", nargs="+", metavar="KEY", help="only these mutants, as `--list` names them")
    parser.add_argument("--tests", nargs="+", default=["tests"], metavar="PATH", help="test files or folders to run")
    parser.add_argument("--revision", default="HEAD", help="whose code and tests")
    parser.add_argument("--against", help="another revision, for the same mutants")
    parser.add_argument("--long", action="store_true", help="runs long tests on what plain ones don't catch")
    parser.add_argument(
        "--most", type=float, default=240.0, metavar="SECONDS", help="recorded seconds of tests a mutant"
    )
    parser.add_argument("--processes", type=int, default=2, help="copies that work in parallel")
    parser.add_argument("--mirror", action="store_true", help="measures no contexts: takes tests by folder and imports")
    parser.add_argument("--list", action="store_true", help="prints the mutants and stops")
    flags = parser.parse_args()
    flags.workdir = flags.workdir.resolve()
    return flags


if __name__ == "__main__":
    sys.exit(main())
