"""Seeded mutants of source files: small mistakes, each planted by an edit of a few characters.

A mutant's key consists of its path, the function and the changed statement, without a line number: another revision
with this statement has the same mutant.
"""

import ast
import hashlib
import math
import random
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from tools.mutants.edits import Mutant, is_text, mutants

FOLDERS = (
    *(f"core/{name}" for name in ("engine", "distribution", "task", "optimizers", "layers", "losses", "metrics")),
    *("core/data", "core/checkpoint", "trainers", "models"),
)
KINDS = ("constant", "comparison", "sign", "dropped", "swapped", "off by one")


def folder_of(path: str, folders: Sequence[str] = FOLDERS) -> str:
    """Returns the folder of the list that a path belongs to."""
    return max((folder for folder in folders if path.startswith(f"{folder}/")), key=len, default="")


def sources(root: Path, folders: Sequence[str] = FOLDERS) -> dict[str, str]:
    """Returns the text of each Python file below the folders of a checkout, by its path there."""
    files = sorted({path for folder in folders for path in (root / folder).rglob("*.py")})
    return {str(path.relative_to(root)): path.read_text() for path in files}


def chosen(
    texts: Mapping[str, str],
    *,
    count: int,
    seed: int,
    kinds: Sequence[str] = KINDS,
    folders: Sequence[str] = FOLDERS,
    shared: Iterable[Mapping[str, str]] = (),
) -> list[Mutant]:
    """Returns `count` mutants that each of the `shared` trees has, too.

    Each folder gets its share by lines of code, kinds take turns in it, and no statement is changed twice. The order
    follows hashes of seed and key, so that an edit elsewhere in the tree hardly changes the choice.
    """
    known = [{x.key for path, text in tree.items() for x in mutants(path, text)} for tree in shared]
    found, lines = defaultdict[str, list[Mutant]](list), Counter[str]()
    for path, text in texts.items():
        folder = folder_of(path, folders)
        lines[folder] += code_lines(text)
        found[folder] += [x for x in mutants(path, text) if x.kind in kinds and all(x.key in keys for keys in known)]
    taken = []
    for folder, quota in _shares(lines, count).items():
        order = sorted(found[folder], key=lambda x: hashlib.sha256(f"{seed}/{x.key}".encode()).digest())
        queues = {kind: [x for x in order if x.kind == kind] for kind in kinds}
        turns = random.Random(f"{seed}/{folder}").sample(list(kinds), len(kinds))
        mine, touched = list[Mutant](), set[tuple[str, int]]()
        while len(mine) < quota and any(queues.values()):
            for kind in turns:
                while queues[kind]:
                    mutant = queues[kind].pop(0)
                    if (mutant.path, mutant.first) not in touched and _compiles(mutant, texts[mutant.path]):
                        touched.add((mutant.path, mutant.first))
                        mine.append(mutant)
                        break
        taken += mine[:quota]
    return taken


def code_lines(text: str) -> int:
    """Counts the lines of a source on which a statement begins, docstrings excepted."""
    return len({node.lineno for node in ast.walk(ast.parse(text)) if isinstance(node, ast.stmt) and not is_text(node)})


def _shares(lines: Mapping[str, int], count: int) -> dict[str, int]:
    """Splits a count by lines, with largest remainders; each folder with code gets at least one."""
    whole = sum(lines.values()) or 1
    exact = {folder: count * n / whole for folder, n in lines.items()}
    shares = {folder: max(1, math.floor(x)) for folder, x in exact.items()}
    for folder in sorted(exact, key=lambda folder: (shares[folder] - exact[folder], folder)):
        if sum(shares.values()) < count:
            shares[folder] += 1
    return shares


def _compiles(mutant: Mutant, text: str) -> bool:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", SyntaxWarning)
            compile(mutant.planted(text), mutant.path, "exec")
    except (SyntaxError, SyntaxWarning):
        return False
    return True
