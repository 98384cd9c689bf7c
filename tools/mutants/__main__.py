"""`python -m tools.mutants`: plants mistakes in the product code, and counts those that the tests catch.

Mistakes are constants, comparisons, signs, dropped statements, swapped arguments, and off by one. Each is planted in a
copy of a commit, in a folder of `--workdir`; the tests that reach its line run, cheapest first, until one fails:

    python -m tools.mutants --workdir=W --count=400 --against=d7194db --long

compares two suites: the same mutants, each judged by a commit's tests in that commit's code. What is measured stays in
the workdir, so that the same command resumes: contexts (which tests run a line) and a line of JSON per verdict.
"""

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from tools.mutants import contexts, run, table
from tools.mutants.edits import Mutant
from tools.mutants.edits import mutants as planted
from tools.mutants.plant import FOLDERS, KINDS, chosen, sources
from tools.mutants.trees import Tree, commit


def main() -> int:
    """Judges the mutants that the flags ask for; returns 1 where the suite catches fewer than the one it is against."""
    flags = _flags()
    console = Console(highlight=False, soft_wrap=True)
    revisions = [flags.revision, *([flags.against] if flags.against else [])]
    commits = [commit(x) for x in revisions]
    copies = [
        [Tree(flags.workdir / f"{sha[:10]}-{n}", sha) for n in range(flags.processes)] for sha in dict.fromkeys(commits)
    ]
    try:
        texts = [sources(trees[0].tree) for trees in copies]
        own = [{path: x for path, x in tree.items() if _below(path, flags.only)} for tree in texts]
        mutants = chosen(own[0], count=flags.count, seed=flags.seed, kinds=flags.kinds, shared=own[1:])
        if flags.list:
            for mutant in mutants:
                console.print(f"{mutant.key} {mutant.path}:{mutant.first} {mutant.kind} "
                              f"{mutant.before.strip()!r} -> {mutant.after.strip()!r}", markup=False)  # fmt: skip
            return 0
        suites = []
        for sha, trees, tree_texts in zip(commits, copies, texts, strict=True):
            suites.append(_judged(flags, console, sha, trees, mutants, tree_texts))
    finally:
        for trees in copies:
            for tree in trees:
                tree.close()
    console.print(table.table([str(x)[:12] for x in revisions], suites, flags.long))
    for verdict in suites[0].values():
        if not table.caught(verdict, flags.long):
            console.print(table.line(verdict), markup=False)
    if len(suites) == 1:
        return 0
    missed = table.lost(suites[0], suites[1], flags.long)
    console.print(f"\n{len(missed)} mutants that {flags.revision} misses and {flags.against} catches:", markup=False)
    for new, old in missed:
        console.print(f"{table.line(new)}; caught by {old.by}", markup=False)
    counts = [list(table.rows(suites, which))[-1][2] for which in {False, flags.long}]
    return int(any(new < old for new, old in counts))


def _judged(
    flags: argparse.Namespace,
    console: Console,
    sha: str,
    trees: Sequence[Tree],
    mutants: Sequence[Mutant],
    texts: dict[str, str],
) -> dict[str, run.Verdict]:
    """Measures contexts where there are none, then judges the mutants of a commit that have no verdict yet."""
    tree = trees[0].tree
    files = contexts.test_files(tree, flags.tests)
    parts = [(chunk, long) for chunk in contexts.chunks(files) for long in ((False, True) if flags.long else (False,))]
    cache = (flags.cache or flags.workdir / "contexts") / sha[:10]
    kept = {(chunk[0], long): contexts.chunk_file(cache, chunk, long) for chunk, long in parts}
    missing = [x for x in parts if not kept[x[0][0], x[1]].exists()] if not flags.mirror else []
    begun = time.monotonic()

    def measure(one: Tree, part: tuple[list[str], bool]) -> str:
        contexts.measure(one, part[0], kept[part[0][0], part[1]], part[1])
        return part[0][0]

    for at, name in enumerate(run.each(trees, missing, measure), 1):
        console.print(f"{sha[:7]} contexts {at}/{len(missing)}, {time.monotonic() - begun:.0f} s: {name}", markup=False)
    read = [contexts.load(path) for path in kept.values() if path.exists()]
    reach = contexts.Reach(tree, files, read)
    if reach.failing:
        console.print(f"{sha[:7]}: left out, as they fail without a mutant: {sorted(reach.failing)}", markup=False)
    target = flags.workdir / f"verdicts-{sha[:10]}.jsonl"
    done = run.read(target)
    here = {x.key: x for path in {y.path for y in mutants} for x in planted(path, texts[path])}
    left = [here[x.key] for x in mutants if x.key not in done]
    sound = dict[str, bool]()
    judges = {id(x): run.Judge(x, reach, sound, flags.most, flags.long) for x in trees}
    counts, begun = Counter(x.verdict for x in done.values()), time.monotonic()
    with target.open("a") as file:
        for at, verdict in enumerate(run.each(trees, left, lambda x, mutant: judges[id(x)].verdict(mutant)), 1):
            file.write(f"{json.dumps(verdict._asdict())}\n")
            file.flush()
            done[verdict.key] = verdict
            counts[verdict.verdict] += 1
            told = ", ".join(f"{n} {kind}" for kind, n in counts.items())
            console.print(
                f"{sha[:7]} {at}/{len(left)}, {time.monotonic() - begun:.0f} s ({told}): {table.line(verdict)}",
                markup=False,
            )
    return {x.key: done[x.key] for x in mutants}


def _below(path: str, folders: Sequence[str]) -> bool:
    return any(f"{path}/".startswith(f"{folder.rstrip('/')}/") for folder in folders)


def _flags() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tools.mutants", description=__doc__.splitlines()[0])
    parser.add_argument(
        "--workdir", type=Path, required=True, help="verdicts, contexts and copies; resumes what is there"
    )
    parser.add_argument("--cache", type=Path, help="contexts, if not in the workdir")
    parser.add_argument("--count", type=int, default=400, help="mutants over all folders")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS), metavar="KIND")
    parser.add_argument("--only", nargs="+", default=list(FOLDERS), metavar="PATH", help="folders or files to plant in")
    parser.add_argument("--tests", nargs="+", default=["tests"], metavar="PATH", help="test files or folders to run")
    parser.add_argument("--revision", default="HEAD", help="whose code and tests")
    parser.add_argument("--against", help="another revision, for the same mutants")
    parser.add_argument("--long", action="store_true", help="tries what plain tests let pass on long ones")
    parser.add_argument(
        "--most", type=float, default=240.0, metavar="SECONDS", help="recorded seconds of tests a mutant"
    )
    parser.add_argument("--processes", type=int, default=2, help="copies that work at a time")
    parser.add_argument("--mirror", action="store_true", help="measures no contexts: takes tests by folder and imports")
    parser.add_argument("--list", action="store_true", help="prints the mutants and stops")
    flags = parser.parse_args()
    flags.workdir = flags.workdir.resolve()
    return flags


if __name__ == "__main__":
    sys.exit(main())
