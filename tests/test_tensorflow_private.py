"""TensorFlow's private parts are used in one module only, and a command tries them with the next TensorFlow."""

import ast
import doctest
import itertools
import json
import sys

import pytest

import core.tensorflow_private
from tests.commands import CHECKOUT
from tools import next_tensorflow

PRIVATE = CHECKOUT / "core" / "tensorflow_private.py"
FILES = sorted(
    path for package in ("core", "models", "trainers", "benchmarks") for path in (CHECKOUT / package).rglob("*.py")
)
IMPORTED = {"Any", "Callable", "Iterator", "Sequence", "cond_v2", "tf", "while_v2"}
# Private names that belong to named tuples, `os`, `sys` and trackio.
OF_OTHERS = {"_replace", "_asdict", "_fields", "_make", "_exit", "_getframe", "_to_dict"}


def private_imports(nodes):
    for node in nodes:
        modules = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        modules += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        yield from (name for name in modules if name.startswith("tensorflow.python"))


def private_attributes(nodes):
    """Yields `name` of each attribute `x._name`, unless `x` is `self`, a class or gin's module."""
    for node in nodes:
        if isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.startswith("__"):
            owner = getattr(node.value, "id", None)
            if owner not in ("self", "cls", "gin_config", "reference") and node.attr not in OF_OTHERS:
                yield node.attr


def own_names(nodes):
    """Returns the names that the project defines: functions, classes, fields and attributes of `self`."""
    found = set()
    for node in nodes:
        found.add(getattr(node, "name", None))
        targets = [node.target] if isinstance(node, ast.AnnAssign) else getattr(node, "targets", [])
        for target in (leaf for each in targets for leaf in ast.walk(each)):
            found.add(getattr(target, "attr", None) or getattr(target, "id", None))
    return found


def test_no_other_module_uses_private_parts_of_tensorflow():
    files = {path: list(ast.walk(ast.parse(path.read_text()))) for path in FILES if path != PRIVATE}
    own = own_names(itertools.chain(*files.values()))
    used = {
        f"{path.relative_to(CHECKOUT)}: {name}"
        for path, nodes in files.items()
        for name in (*private_imports(nodes), *(x for x in private_attributes(nodes) if x not in own))
    }
    assert used == set()


@pytest.mark.parametrize(
    "line",
    ["from tensorflow.python.eager import context", "import tensorflow.python.ops", "x = graph._get_function(name)"],
)
def test_private_parts_are_found(line):
    nodes = list(ast.walk(ast.parse(line)))
    assert len([*private_imports(nodes), *private_attributes(nodes)]) == 1


def test_each_private_part_is_used():
    others = "".join(path.read_text() for path in FILES if path != PRIVATE)
    given = [name for name in vars(core.tensorflow_private) if not name.startswith("_") and name not in IMPORTED]
    assert len(given) > 20
    assert [name for name in given if name not in others] == []


def test_examples_of_the_command():
    failures, tried = doctest.testmod(next_tensorflow)
    assert failures == 0 < tried


@pytest.mark.long
def test_command_finds_missing_symbols(tmp_path, monkeypatch):
    assert len(next_tensorflow.symbols(PRIVATE.read_text())) > 10
    source = (
        "from json import loads\nfrom tensorflow.python import no_module\nfrom tensorflow.python.eager import context"
    )
    monkeypatch.setattr(next_tensorflow, "PRIVATE", tmp_path / "private.py")
    next_tensorflow.PRIVATE.write_text(source)
    assert next_tensorflow.symbols(source) == [
        ("tensorflow.python", "no_module"),
        ("tensorflow.python.eager", "context"),
    ]
    (line,) = next_tensorflow.missing_symbols(sys.executable)
    assert line.startswith("tensorflow.python.no_module: ")


def test_command_lists_failed_tests_and_says_so_in_its_exit_code(tmp_path, monkeypatch, capsys):
    notes = [{"test": "tests/a.py::first", "passed": True}, {"test": "tests/a.py::second", "passed": False}]
    python = tmp_path / "python"
    lines = "\n".join(json.dumps(note) for note in notes)
    python.write_text(f"#!/bin/sh\n[ \"$1\" = -c ] && echo 9.9 || printf '%s\\n' '{lines}' > \"$TEST_NOTES\"\n")
    python.chmod(0o755)
    monkeypatch.setattr(next_tensorflow, "environment", lambda folder, tensorflow: str(python))
    monkeypatch.setattr(next_tensorflow, "missing_symbols", lambda python: [])
    assert next_tensorflow.main([f"--workdir={tmp_path}"]) == 1
    printed = capsys.readouterr().out
    assert "TensorFlow 9.9: 1 tests failed\ntests/a.py::second\n    1 tests/a.py\n" in printed
    monkeypatch.setattr(next_tensorflow, "missing_symbols", lambda python: ["gone"])
    assert next_tensorflow.main([f"--workdir={tmp_path}"]) == 1
    assert "1 private symbols are missing\ngone" in capsys.readouterr().out
