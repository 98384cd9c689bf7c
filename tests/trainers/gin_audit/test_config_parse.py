"""Errors in the text of gin files, their includes and imports; and overrides."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from config_lab import CHECKOUT, GOOD, bound, clean, message, refused, says, written

from trainers.gin_audit.audit import read
from trainers.gin_audit.statements import Macro

_clean = pytest.fixture(autouse=True)(clean)


def test_reading_imports_no_tensorflow() -> None:
    code = "import sys, trainers.gin_audit.audit as a; a.read([], ['x = 1'], []); print('tensorflow' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=CHECKOUT)
    assert out.stdout.strip() == "False"


def test_a_missing_file_is_named_with_the_places_looked_at_and_the_nearest() -> None:
    written("", "configs/digits_mlp.gin")
    text = message(lambda: read(["configs/digits_mpl.gin"], [], [Path("elsewhere")]))
    says(text, "`--gin_file=configs/digits_mpl.gin`", str(Path("elsewhere/configs").resolve()))
    says(text, "Did you mean `configs/digits_mlp.gin`?")


@pytest.mark.parametrize("name", ["digits_mlp", "digits_mlp.gin", "config/digits_mlp.gin", "digit_mlp"])
def test_a_name_without_folder_or_ending_finds_its_neighbour(name: str) -> None:
    written("", "configs/digits_mlp.gin")
    says(message(lambda: read([name], [], [])), "Did you mean `configs/digits_mlp.gin`?")


def test_files_are_looked_for_in_the_search_path(tmp_path: Path) -> None:
    written("Lab.seed = 3", "checkout/configs/x.gin")
    assert read(["configs/x.gin"], [], [tmp_path / "checkout"]).bindings[0].value == 3


def test_include_is_found_next_to_the_including_file() -> None:
    written("Lab.seed = 1", "deep/base.gin")
    (binding,) = read([written("include 'base.gin'", "deep/top.gin")], [], []).bindings
    assert (binding.value, str(binding.place)) == (1, "deep/base.gin:1")


def test_includes_that_are_missing_or_lead_back_are_named_with_their_line() -> None:
    says(message(lambda: read([written("Lab.seed = 1\ninclude 'b.gin'")], [], [])), "`include 'b.gin'` (a.gin:2)")
    written("include 'a.gin'", "b.gin")
    says(message(lambda: read([written("include 'b.gin'")], [], [])), "`include 'a.gin'` (b.gin:1)", "remove it")


def test_file_that_is_not_plain_text_is_an_error(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.gin")
    (tmp_path / "endless.gin").touch()
    os.truncate(tmp_path / "endless.gin", 2**40)
    (tmp_path / "nul.gin").write_bytes(b"Lab.seed = 1\0")
    (tmp_path / "bytes.gin").write_bytes(b"\xff\xfe\x00")
    for name, why in (
        ("pipe", "a pipe or a device"),
        ("endless", "bytes, more than"),
        ("nul", "NUL"),
        ("bytes", "can't be read"),
    ):
        says(message(lambda name=name: read([str(tmp_path / f"{name}.gin")], [], [])), f"{name}.gin", why)
    says(message(lambda: read(["/dev/zero"], [], [])), "/dev/zero", "a pipe or a device")
    says(message(lambda: read([str(tmp_path)], [], [])), str(tmp_path), "a directory")


def test_files_that_include_each_other_come_to_an_end(tmp_path: Path) -> None:
    for i in range(60):
        (tmp_path / f"{i}.gin").write_text(f"include '{i + 1}.gin'")
    says(message(lambda: read([str(tmp_path / "0.gin")], [], [])), "`include '50.gin'`", "use fewer")


@pytest.mark.parametrize(
    ("line", "parts"),
    [
        ("Lab.seed 3", ["a.gin:2", "expected ':' or '='", "`Lab.seed 3`"]),
        ("Lab.name = digits", ["a.gin:2", "`digits` is not a value", "quotes", '"digits"']),
        ("Lab.flag = true", ["a.gin:2", "Did you mean `True`?"]),
        ("Lab.seed = 2 * 3", ["a.gin:2", "no arithmetic", "`Lab.seed = 2 * 3`"]),
        ("Lab.seed = ", ["a.gin:2", "Unable to parse value"]),
        ("Lab.list = [1, 2", ["a.gin:2", "open", "`Lab.list = [1, 2`"]),
        ("Lab.name = 'open", ["a.gin:2", "`Lab.name = 'open`"]),
        ("Lab.task = @Digits(3)", ["a.gin:2", "Expected ')'", "`Lab.task = @Digits(3)`"]),
        ("Lab.seed = -", ["a.gin:2"]),
        ("Lab.rate = -%rate", ["a.gin:2", "`-%rate`", "sign in the definition of `%rate`", "`Lab.rate = -%rate`"]),
        ("Lab.rate = - @rate()", ["a.gin:2", "`-@rate()`", "sign in what `@rate()` makes"]),
        ("Lab.list = [\n  1,\n  (-%rate, 2)]", ["a.gin:4", "`-%rate`", "`(-%rate, 2)]`"]),
        ("Lab.dict = {'a': [-@rate]}", ["a.gin:2", "`-@rate`"]),
        ("Lab.dict = {-%rate: 1}", ["a.gin:2", "`-%rate`"]),
        ("Lab:\n  rate = -%rate", ["a.gin:3", "`-%rate`"]),
        ("rate = -%other", ["a.gin:2", "`-%other`"]),
        ("Lab.rate = +%rate", ["a.gin:2", "Unable to parse value"]),
        ("Lab.rate = --%rate", ["a.gin:2", "Unable to parse value"]),
        ("Lab.rate = -(%rate)", ["a.gin:2", "Unable to parse value"]),
        ("Lab.flag = not %rate", ["a.gin:2", "`not` is not a value"]),
        ("Lab.rate = %rate - %rate", ["a.gin:2", "no arithmetic"]),
        ("= 3", ["a.gin:2", "`= 3`"]),
        ("$", ["a.gin:2"]),
        ("Lab..seed = 3", ["a.gin:2"]),
        ("Lab:", ["a.gin:2"]),
        ("Lab:\nseed = 3", ["a.gin:3", "indentation"]),
        ("Lab.seed = gin.REQUIRED", ["a.gin:2", "`gin` is not a value"]),
        ("Lab.list = " + "[" * 10_000 + "]" * 10_000, ["a.gin:2", "more than 50 nested brackets", "[[[...`"]),
        ("Lab.list = " + "(" * 60 + "1" + ",)" * 60, ["a.gin:2", "more than 50 nested brackets"]),
        ("Lab.dict = " + "{1: " * 60 + "1" + "}" * 60, ["a.gin:2", "more than 50 nested brackets"]),
        ("Lab.dict = {'a': 1,\n 'b': 2, 'a': 3}", ["a.gin:3", "'a' is twice in one dictionary"]),
        ("Lab.dict = {'a': {'b': {1: 2}, 'b': 1}}", ["a.gin:2", "'b' is twice"]),
        ("Lab.dict = {[1]: 2}", ["a.gin:2", "[1] can't be a dictionary key"]),
        ("Lab.dict = {(1, {}): 2}", ["a.gin:2", "(1, {}) can't be a dictionary key"]),
        ("Lab.seed = " + "9" * 5000, ["a.gin:2", "is not a value", "999...`"]),
        ("Lab.name = \x1b]0;title\x07", ["a.gin:2", r"\x1b]0;title\x07"]),
    ],
)
def test_syntax_errors_name_file_line_and_text(line: str, parts: list[str]) -> None:
    says(message(lambda: read([written(f"Lab.seed = 1\n{line}\n")], [], [])), *parts)


def test_keys_of_a_long_dictionary_are_not_each_compared_with_all_before(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = 0

    def equal(a: Macro, b: object) -> bool:
        nonlocal compared
        compared += 1
        return isinstance(b, Macro) and a.name == b.name

    monkeypatch.setattr(Macro, "__eq__", equal)
    items = ", ".join(f"%key_{i}: {i}" for i in range(1000))
    (binding,) = read([written(f"a = {{{items}}}")], [], []).bindings
    assert len(binding.value) == 1000
    assert compared < 1000


def test_message_shows_the_beginning_of_a_long_value() -> None:
    (binding,) = read([written(f"a = {list(range(10_000))}")], [], []).bindings
    says(str(binding), "`a = [0, 1, 2, ", "...` (a.gin:1)")
    assert len(str(binding)) < 400


def test_keys_may_stand_in_several_dictionaries_and_a_minus_before_a_number() -> None:
    content = "a = {'a': {'a': 1}, 'b': [{'a': 2}, {'a': 3}]}\nb = -1\nc = [- 2.5, {-3: -4e-5}]"
    found = [b.value for b in read([written(content)], [], []).bindings]
    assert found == [{"a": {"a": 1}, "b": [{"a": 2}, {"a": 3}]}, -1, [-2.5, {-3: -4e-5}]]


@pytest.mark.parametrize("ending", ["", "\n", "\n\n", "\n# the end"])
def test_the_last_statement_is_read_whatever_the_file_ends_with(ending: str) -> None:
    assert [b.value for b in read([written("a = 1\nb = [2,\n 3]" + ending)], [], []).bindings] == [1, [2, 3]]


def test_a_syntax_error_of_a_gin_param_shows_it() -> None:
    text = message(lambda: read([], ["Lab.name=digits"], []))
    says(text, "--gin_param", "`digits` is not a value", "`Lab.name=digits`")


@pytest.mark.parametrize(
    "text",
    [
        *(f"Lab.seed = 1\n\n{x}" for x in ("Lab.seed = 2", "audit_test.Lab.seed = 2", "Lab:\n  seed = 2\n")),
        "seed = 1\nseed = 2",
    ],
)
def test_a_duplicate_within_one_file_names_both_lines(text: str) -> None:
    text = message(lambda: read([written(text)], [], []))
    says(text, "seed` is bound twice", "1 at a.gin:1", "2 at a.gin:", "Keep one")


def test_scopes_and_modules_tell_bindings_apart() -> None:
    assert len(read([written("g/Lab.seed = 2\nx.Lab.seed = 3\ny.Lab.seed = 4")], [], []).bindings) == 3


def test_later_files_and_params_override_and_each_override_is_kept_once() -> None:
    written("Lab.seed = 2", "b.gin")
    configuration = read([written("Lab.seed = 1\nlr = 0.1"), "b.gin"], ["lr = 0.2", "Lab.seed = 3"], [])
    assert [str(override) for override in configuration.overrides] == [
        "`Lab.seed` is 2 (b.gin:1), not 1 (a.gin:1)",
        "`lr` is 0.2 (--gin_param), not 0.1 (a.gin:2)",
        "`Lab.seed` is 3 (--gin_param), not 2 (b.gin:1)",
    ]
    assert {binding.name: binding.value for binding in configuration.bindings} == {"lr": 0.2, "Lab.seed": 3}


def test_an_override_by_the_same_value_says_so() -> None:
    configuration = read([written("Lab.seed = 200\nlr = 1e-3")], ["Lab.seed = 200", "lr = 0.001"], [])
    assert [str(override) for override in configuration.overrides] == [
        "`Lab.seed` is 200 (--gin_param), as it was (a.gin:1)",
        "`lr` is 0.001 (--gin_param), as it was (a.gin:2)",
    ]
    assert "Lab.seed = 200  # --gin_param, as it was (a.gin:1)\n" in configuration.given


def test_an_includer_may_override_what_it_includes() -> None:
    written("Lab.seed = 1", "base.gin")
    configuration = read([written("include 'base.gin'\nLab.seed = 2")], [], [])
    assert [b.value for b in configuration.bindings] == [2]
    assert str(configuration.overrides[0].old.place) == "base.gin:1"


def test_filling_in_a_required_value_is_no_override() -> None:
    assert read([written("Lab.seed = %gin.REQUIRED")], ["Lab.seed = 1"], []).overrides == ()


def test_given_is_a_gin_file_that_says_the_same() -> None:
    written("rate = 0.5\nLab.strategy = 'a'", "base.gin")
    content = (
        GOOD + "include 'base.gin'\nimport os.path\ng/adamw.decay = %rate\nDigits.names = {'a': (1, [2.5]), 'b': None}"
    )
    first = read([written(content)], ["Lab.strategy = 'b # c'"], [])
    second = read([written(first.given, "given.gin")], [], [])
    assert {b.name: b.value for b in first.bindings} == {b.name: b.value for b in second.bindings}
    assert [item.module for item in second.imports] == ["os.path"]
    says(first.given, "# --gin_param, not 'a' (base.gin:2)")


def test_an_unknown_module_names_the_line_and_where_modules_are_looked_for(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    written("", "spiral_research.py")
    text = refused("import spiral_reserch\n" + GOOD)
    says(text, "`import spiral_reserch` (a.gin:1)", "no module `spiral_reserch`", str(tmp_path), "PYTHONPATH")
    says(text, "Did you mean `spiral_research`?")


def test_an_unknown_submodule_suggests_its_sibling() -> None:
    says(refused("import trainers.gin_audt\n" + GOOD), "Did you mean `trainers.gin_audit`?")


@pytest.mark.parametrize(
    ("content", "error"),
    [
        ("raise ValueError('no good')", ValueError),
        ("raise MemoryError", MemoryError),
        ("import nonsense_of_theirs", ModuleNotFoundError),
        ("from os import nonsense", ImportError),
    ],
)
def test_import_errors_of_modules_stay_as_they_are(
    content: str, error: type[Exception], tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    name = f"audit_broken_{error.__name__}"
    written(content, f"{name}.py")
    with pytest.raises(error) as caught:
        bound(f"import {name}\n" + GOOD)
    assert caught.type is error
    assert str(caught.traceback[-1].path).endswith(f"{name}.py")


@pytest.mark.parametrize(
    ("content", "says_what"), [("x = 1\ndef f(:", ".py:2): invalid syntax"), ("x = 1\n\0", "null bytes")]
)
def test_module_that_cannot_be_parsed_is_named_with_its_gin_line(
    content: str, says_what: str, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "audit_unreadable.py").write_text(content)
    text = refused("import audit_unreadable\n" + GOOD)
    says(text, "`import audit_unreadable` (a.gin:1): Python can't read that module", says_what)


def test_an_imported_module_registers_its_configurables(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    written(
        """
        from __future__ import annotations
        import gin

        @gin.configurable
        class SpiralTask:
            def __init__(self, *, rng: Nowhere, width: int = 64, other: Nowhere = None):
                pass
        """,
        "audit_spiral.py",
    )
    content = GOOD + "import audit_spiral\nLab.evaluator = @SpiralTask\nSpiralTask.width = {}\nSpiralTask.other = 'x'"
    bound(content.format(3))
    says(refused(content.format("'wide'")), "`SpiralTask.width = 'wide'` (a.gin:5)", "`int` is wanted")


def test_dynamic_registration_is_explained() -> None:
    says(refused("from __gin__ import dynamic_registration\n" + GOOD), "(a.gin:1)", "@gin.configurable")
