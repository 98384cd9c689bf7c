"""Tests that reach a line: coverage per test, cached by chunk of test files.

A chunk is a JSON file with `tests` (id, seconds, mark, shared fixtures, failures) and `lines`, groups of lines that the
same contexts run. A test reaches the lines of its shared fixtures, whichever test created them.
"""

import ast
import functools
import gzip
import json
import re
import shutil
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tools.mutants import hook
from tools.mutants.edits import Mutant
from tools.mutants.plant import folder_of
from tools.mutants.trees import Tree

CHUNK = 6  # test files of one folder that share a process
LIMIT = 3000.0  # seconds for a chunk
UNKNOWN = 20.0  # seconds, of a test file that hasn't been timed
CACHES = re.compile(r"\b(lru_)?cache\b")


class Test(NamedTuple):
    """A test and its processor seconds."""

    id: str
    seconds: float
    long: bool

    @property
    def file(self) -> str:
        return self.id.partition("::")[0]


def test_files(tree: Path, below: Sequence[str]) -> list[str]:
    """Returns the test files of a tree below some paths."""
    found = [path for name in below for path in ([tree / name] if name.endswith(".py") else (tree / name).rglob("*"))]
    return sorted({str(x.relative_to(tree)) for x in found if re.fullmatch(r"test_.*\.py", x.name) and x.exists()})


def chunks(files: Iterable[str]) -> list[list[str]]:
    """Splits test files into chunks of one folder each."""
    folders = defaultdict[Path, list[str]](list)
    for file in files:
        folders[Path(file).parent].append(file)
    return [x[at : at + CHUNK] for x in folders.values() for at in range(0, len(x), CHUNK)]


def chunk_file(cache: Path, files: Sequence[str], long: bool) -> Path:
    """Returns the file that keeps the contexts of a chunk."""
    name = re.sub(r"[^a-z0-9]+", "-", f"{files[0]} {len(files)} {Path(files[-1]).stem}".lower())
    return cache / f"{name}{'-long' if long else ''}.json.gz"


def measure(tree: Tree, files: Sequence[str], target: Path, long: bool) -> bool:
    """Runs a chunk's plain or long tests under coverage; returns whether all of them finished."""
    scratch = tree.root / "contexts"
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir()
    environment = {hook.FOLDER: str(scratch), hook.TREE: str(tree.tree)}
    ended = tree.run(files, arguments=["-m", "long" if long else "not long"], limit=LIMIT, environment=environment)
    tests = [x for x in ended.notes if "id" in x]
    lines, late = _lines(scratch, str(tree.tree)), ended.late or bool(ended.code not in (0, 1, 5))
    kept = {"files": list(files), "tests": tests, "lines": lines, "incomplete": late}
    target.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(target.with_suffix(".part"), "wt") as file:
        json.dump(kept, file)
    target.with_suffix(".part").rename(target)
    return not late


def _lines(scratch: Path, tree: str) -> dict[str, list[tuple[list[int], list[str]]]]:
    from coverage import CoverageData
    from coverage.exceptions import DataError

    found = defaultdict[str, defaultdict[int, set[str]]](lambda: defaultdict(set))
    for path in sorted(scratch.glob("data.*")):
        data = CoverageData(str(path))
        try:
            data.read()
        except DataError:  # tests kill processes, some of them while they write: a killed one has no lines
            continue
        for file in data.measured_files():
            for line, contexts in data.contexts_by_lineno(file).items():
                found[file.removeprefix(f"{tree}/")][line].update(contexts)
    grouped = {}
    for file, lines in found.items():
        groups = defaultdict[tuple[str, ...], list[int]](list)
        for line, names in lines.items():
            groups[tuple(sorted(names - {""}))].append(line)
        grouped[file] = [(sorted(x), list(contexts)) for contexts, x in groups.items()]
    return grouped


def load(path: Path) -> dict[str, Any]:
    """Returns the results of `measure`."""
    with gzip.open(path, "rt") as file:
        return dict(json.load(file))


class Reach:
    """Maps lines of a tree to the tests that run them; files without contexts are mapped by folder and imports."""

    def __init__(self, tree: Path, files: Sequence[str], kept: Iterable[Mapping[str, Any]]):
        self.tree, self.files = tree, list(files)
        self.tests, self.failing = dict[str, Test](), set[str]()
        self.lines = defaultdict[str, defaultdict[int, set[str]]](lambda: defaultdict(set))
        kept = list(kept)
        for chunk in kept:
            self._take(chunk)
        whole, broken = [
            {x for chunk in kept if chunk["incomplete"] is y for x in chunk["files"]} for y in (False, True)
        ]
        self.measured = whole - broken
        self.by_file = defaultdict[str, list[Test]](list)
        for test in self.tests.values():
            self.by_file[test.file].append(test)

    def _take(self, chunk: Mapping[str, Any]) -> None:
        users = defaultdict[str, set[str]](set)
        for note in chunk["tests"]:
            if note["failed"]:
                self.failing.add(note["id"])
            elif not note["skipped"]:
                self.tests[note["id"]] = Test(note["id"], note["seconds"], note["long"])
                for context in (note["id"], *note["fixtures"]):
                    users[context].add(note["id"])
        for file, groups in chunk["lines"].items():
            for lines, contexts in groups:
                reached = set[str]().union(*(users[x] for x in contexts))
                for line in lines:
                    self.lines[file][line] |= reached

    def reaching(self, mutant: Mutant) -> list[Test]:
        """Returns the tests that run the statement of a mutant.

        Code that runs at import, or once a process (`functools.cache`), counts for every test that runs a line of the
        file, or whose file imports it if none does. So do the other tests of a file with a cache: they share cached
        results.
        """
        known: Mapping[int, set[str]] = self.lines.get(mutant.path, {})
        if mutant.scope and not self._once(mutant):
            names = set[str]().union(*(known.get(line, ()) for line in range(mutant.first, mutant.last + 1)))
        else:
            names = set[str]().union(*known.values())
            if not names:
                names = {x.id for x in self.tests.values() if _module(mutant.path) in self._imports(x.file)}
        for file in {self.tests[name].file for name in names}:
            if self._shares(file):
                names |= {test.id for test in self.by_file[file]}
        return [self.tests[name] for name in names]

    def mirrored(self, mutant: Mutant) -> list[str]:
        """Returns the files without contexts that mirror the mutant's path, or import its module."""
        folder, module = folder_of(mutant.path), _module(mutant.path)
        rest = [file for file in self.files if file not in self.measured]
        return [x for x in rest if x.startswith(f"tests/{folder}/") or module in self._imports(x)]

    def _once(self, mutant: Mutant) -> bool:
        nodes = list(ast.walk(ast.parse((self.tree / mutant.path).read_text())))
        holds = [x for x in nodes if isinstance(x, ast.FunctionDef) and x.lineno <= mutant.first <= (x.end_lineno or 0)]
        own = {mutant.first} & {x.lineno for x in nodes if isinstance(x, (ast.FunctionDef, ast.ClassDef))}
        return not holds or bool(own) or any(CACHES.search(ast.unparse(y)) for x in holds for y in x.decorator_list)

    @functools.cache  # noqa: B019
    def _shares(self, file: str) -> bool:
        """Tells whether a test file, or a helper in `tests` that it imports, caches anything for the process."""
        text = (self.tree / file).read_text()
        helpers = [self.tree / f"{x.replace('.', '/')}.py" for x in self._imports(file) if x.startswith("tests.")]
        return any(CACHES.search(x) for x in (text, *(path.read_text() for path in helpers if path.exists())))

    @functools.cache  # noqa: B019
    def _imports(self, file: str) -> frozenset[str]:
        return frozenset(_imported(ast.parse((self.tree / file).read_text())))


def _module(path: str) -> str:
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def _imported(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (x.name for x in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{x.name}" for x in node.names)
