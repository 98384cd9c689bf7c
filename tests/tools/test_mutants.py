"""Mutants are small, seeded and found again in other revisions; a toy checkout catches some of them."""

import subprocess
import textwrap

import pytest

from tools.mutants import contexts, edits, plant, redundant, run, table, trees

MODULE = textwrap.dedent(
    '''
    """Adds 1 < 2."""

    from typing import TYPE_CHECKING

    if TYPE_CHECKING:
        LIMIT: "tuple[1, 2]" = 3

    __all__ = ["f"]


    def f(rate: float = 0.5, *, on: bool = True) -> "list[3]":
        """Returns a - b."""
        if not on and rate < 3:
            raise ValueError(f"`rate` is {rate + 1}; give 2 - 1")
        total = {"é": 0}
        total["x"] = g(rate, on)
        total["x"] += 2.0 * rate
        log(
            "text",
        )
        return range(on), [rate][1:]
    '''
).lstrip()
EDITS = {
    "constant": {("0.5", "1.0"), ("True", "False"), ("0", "1"), ("2.0", "4.0")},
    "comparison": {(" < ", " <= "), (" < ", " >= "), (" and ", " or "), ("not ", "")},
    "sign": {(" * ", " / "), (" += ", " -= ")},
    "swapped": {("rate, on", "on, rate")},
    "off by one": {("3", "4"), ("on", "(on) - 1"), ("1", "2")},
}


def edited(kind, text=MODULE):
    return [x for x in edits.mutants("core/losses/m.py", text) if x.kind == kind]


@pytest.mark.parametrize("kind", EDITS)
def test_kind_plants_these_edits_and_no_other(kind):
    assert {(x.before, x.after) for x in edited(kind)} == EDITS[kind]


def test_dropped_statements_keep_every_line_number():
    assert [(x.first, x.last) for x in edited("dropped")] == [(14, 14), (16, 16), (17, 17), (18, 20)]
    lines = MODULE.splitlines()
    for mutant in edited("dropped"):
        other = mutant.planted(MODULE).splitlines()
        changed = [n for n, (a, b) in enumerate(zip(lines, other, strict=True), 1) if a != b]
        assert changed == list(range(mutant.first, mutant.last + 1))


def test_key_survives_what_moves_a_statement_and_rewords_an_error():
    moved = MODULE.replace("`rate` is", "A rate of").replace("    total = {", "    # first\n    total = {")
    before, after = ([x.key for x in edits.mutants("core/losses/m.py", x)] for x in (MODULE, moved))
    assert before == after
    assert len(set(before)) == len(before)
    assert not {x.key for x in edits.mutants("core/losses/n.py", MODULE)} & set(before)


def test_choice_is_seeded_spread_by_lines_and_shared_with_another_tree():
    texts = {"core/losses/m.py": MODULE, "models/m.py": MODULE * 3}
    picks = [plant.chosen(texts, count=8, seed=seed) for seed in (0, 0, 1)]
    assert picks[0] == picks[1] != picks[2]
    assert [sum(x.path.startswith(folder) for x in picks[0]) for folder in ("core", "models")] == [2, 6]
    assert len({(x.path, x.first) for x in picks[0]}) == 8  # no statement twice
    old = {"models/m.py": MODULE, "core/losses/m.py": MODULE.replace("2.0 * rate", "2.0 * on")}
    keys = {x.key for path, text in old.items() for x in edits.mutants(path, text)}
    shared = plant.chosen(texts, count=8, seed=0, shared=[old])
    assert shared
    assert {x.key for x in shared} <= keys


PRODUCT = """
import functools

LIMIT = 3


def small(x):
    return x < LIMIT


def twice(x):
    return x * 2


def unseen(x):
    return x - 1


@functools.cache
def table():
    return [4, 5]
"""
TESTS = """
import subprocess
import sys
import time

import pytest

from core.losses import toy


@pytest.fixture(scope="module")
def doubled():
    return toy.twice(4)


def test_first(doubled):
    assert toy.small(2)


def test_second(doubled):
    assert doubled == 8


def test_process(tmp_path):
    code = "from core.losses import toy; print(toy.table()[0])"
    assert subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, check=True).stdout == b"4\\n"


@pytest.mark.long
def test_slow():
    assert not toy.small(3)


def hangs():
    time.sleep(600)
"""


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """A copy of a toy checkout, with its server."""
    origin = tmp_path_factory.mktemp("origin")
    files = {
        "core/__init__.py": "",
        "core/losses/toy.py": PRODUCT,
        "core/testing/pytest_plugin.py": "",
        "tests/core/losses/test_toy.py": TESTS,
        "tests/test_hangs.py": "from tests.core.losses.test_toy import hangs as test_hangs\n",
        "pyproject.toml": "[tool.pytest.ini_options]\nmarkers = ['long']\n",
    }
    for name, text in files.items():
        (origin / name).parent.mkdir(parents=True, exist_ok=True)
        (origin / name).write_text(text)
    git = ["git", "-C", str(origin), "-c", "user.name=a", "-c", "user.email=a@b.c"]
    for command in (["init", "-q"], ["add", "-A"], ["commit", "-q", "-m", "toy"]):
        subprocess.run([*git, *command], check=True)
    sha = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()
    made = trees.Tree(tmp_path_factory.mktemp("work") / "copy", sha, origin, imports=trees.PYTEST)
    yield made
    made.close()


FILE = "tests/core/losses/test_toy.py"


@pytest.fixture(scope="module")
def reach(tree, tmp_path_factory):
    kept = [tmp_path_factory.mktemp("contexts") / name for name in ("plain.json.gz", "long.json.gz")]
    for path, long in zip(kept, (False, True), strict=True):
        contexts.measure(tree, [FILE], path, long)
    return contexts.Reach(tree.tree, [FILE], map(contexts.load, kept))


def at(kind, scope, after=None):
    found = [x for x in edits.mutants("core/losses/toy.py", PRODUCT) if (x.kind, x.scope) == (kind, scope)]
    return next(x for x in found if after in (None, x.after))


ALL = ["test_first", "test_process", "test_second", "test_slow"]


@pytest.mark.parametrize(
    ("kind", "scope", "names"),
    [
        ("comparison", "small", ["test_first", "test_slow"]),
        ("sign", "twice", ["test_first", "test_second"]),  # both use the fixture that runs it
        ("sign", "unseen", []),
        ("constant", "", ALL),  # at import
        ("constant", "table", ALL),  # once a process
    ],
)
def test_reaching_tests_run_the_line_even_in_a_fixture_or_a_process(tree, reach, kind, scope, names):
    assert sorted(x.id for x in reach.reaching(at(kind, scope))) == [f"{FILE}::{name}" for name in names]


@pytest.mark.parametrize(
    ("kind", "scope", "after", "verdict", "by", "long"),
    [
        ("sign", "twice", None, run.KILLED, "test_second", False),
        ("constant", "table", "8", run.KILLED, "test_process", False),
        ("constant", "table", "10", run.SURVIVED, "", False),
        ("comparison", "small", " <= ", run.KILLED, "test_slow", True),
        ("sign", "unseen", None, run.UNCOVERED, "", False),
    ],
)
def test_verdict_names_the_test_that_fails(tree, reach, kind, scope, after, verdict, by, long):
    made = run.Judge(tree, reach, {}, 60.0, True).verdict(at(kind, scope, after))
    assert (made.verdict, made.by, made.long) == (verdict, by and f"{FILE}::{by}", long)
    assert (tree.tree / "core/losses/toy.py").read_text() == PRODUCT


def test_run_that_hangs_is_ended_and_named(tree):
    ended = tree.run(["tests/test_hangs.py"], limit=3.0)
    assert ended.late
    assert run.failed(ended) in ("tests/test_hangs.py::test_hangs", "collection")  # on a busy machine, not yet begun


def test_failure_without_a_mutant_kills_nothing(tree, reach):
    sound = {f"{FILE}::test_second": False}
    made = run.Judge(tree, reach, sound, 60.0, False).verdict(at("sign", "twice"))
    assert made.verdict == run.SURVIVED


def verdict(key, kind, long=False):
    told = ("core/losses/toy.py", 1, "sign", "+", "-", kind, "", long, 1, 1, 0, 1.0)
    return run.Verdict(key, *told)


def test_table_compares_suites_on_the_same_mutants():
    new = {key: verdict(key, kind) for key, kind in zip("abc", (run.KILLED, run.SURVIVED, run.LATE), strict=True)}
    old = {"a": verdict("a", run.KILLED), "b": verdict("b", run.KILLED, True), "d": verdict("d", run.KILLED)}
    assert list(table.rows([new, old], False)) == [("core/losses", 2, [1, 1]), ("all", 2, [1, 1])]
    assert list(table.rows([new, old], True))[-1] == ("all", 2, [1, 2])
    assert [x.key for x, _ in table.lost(new, old, True)] == ["b"]
    assert table.lost(new, old, False) == []


def test_verdicts_resume_after_a_line_cut_short(tmp_path):
    (tmp_path / "v").write_text('{"key": "a", "pa')
    assert run.read(tmp_path / "v") == {}
    assert run.read(tmp_path / "none") == {}


@pytest.mark.long
def test_data_of_a_process_killed_as_it_wrote_them_are_skipped(tmp_path):
    (tmp_path / "data.1.2").write_bytes(b"SQLite")
    assert contexts._lines(tmp_path, "tree") == {}


def test_redundant_tests_are_the_dearest_whose_lines_others_run():
    def note(name, seconds, long=False):
        return {"id": name, "seconds": seconds, "long": long, "failed": None, "skipped": False, "fixtures": []}

    notes = [note("t.py::wide[1]", 2.0), note("t.py::wide[2]", 1.0), note("t.py::one", 1.5), note("t.py::two", 1.2)]
    notes += [note("t.py::slow", 9.0, long=True), note("t.py::cheap", 0.1)]
    lines = [([1], ["t.py::wide[1]", "t.py::one"]), ([2], ["t.py::wide[2]", "t.py::two", "t.py::slow"])]
    lines += [([3], ["t.py::slow"]), ([4], ["t.py::one", "t.py::cheap"])]
    chunk = {"files": ["t.py"], "tests": notes, "lines": {"core/x.py": lines}, "incomplete": False}
    assert redundant.redundant([chunk], 1.0) == {"t.py::wide": (3.0, 2)}
    assert redundant.redundant([chunk], 4.0) == {}
