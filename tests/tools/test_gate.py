"""The gate tells unstable tests from those that fail, and names both."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests import slow
from tests.notes import processor_seconds
from tools import gate


def noted(folder, *, code=1, fails=(), alone=(), **measured):
    """Runs a section in which the tests `fails` fail, and of these `alone` fail again."""

    def command(words, notes: Path):
        for test in ["a.py::sound", *fails]:
            usual = {"processor_seconds": 0.1, "seconds": 0.2, "megabytes": 900, "long": False}
            note = {"test": test, "passed": test not in fails, **usual, **measured}
            notes.write_text(notes.read_text() + json.dumps(note) + "\n")
        return code

    return gate.run(folder, ["pytest"], run_command=command, run_alone=lambda test: test not in alone)


def reported(folder, capsys):
    code = gate.report(folder, loop_seconds=lambda: gate.REFERENCE_SECONDS)
    return code, capsys.readouterr().out


def test_gate_lists_a_test_that_passes_alone_as_unstable(tmp_path, capsys):
    assert noted(tmp_path, fails=["a.py::shaky"]) == 0
    code, text = reported(tmp_path, capsys)
    assert code == 0
    assert "unstable (failed, then passed alone; fix its cause): a.py::shaky" in text
    assert "a process grows to 900 MB" in text


def test_gate_fails_for_a_test_that_fails_again(tmp_path):
    assert noted(tmp_path, fails=["a.py::shaky", "b.py::broken"], alone=["b.py::broken"]) == 1


@pytest.mark.parametrize(("unstable", "code"), [(2, 0), (3, 1)])
def test_gate_bears_two_unstable_tests(unstable, code, tmp_path, capsys):
    for i in range(unstable):
        assert noted(tmp_path, fails=[f"a.py::shaky_{i}"]) == 0
    assert reported(tmp_path, capsys)[0] == code


def test_gate_runs_nothing_again_after_many_failures_or_none(tmp_path):
    assert noted(tmp_path, fails=[f"a.py::t{i}" for i in range(gate.MOST_AGAIN + 1)]) == 1
    assert noted(tmp_path, code=1) == 1  # pip's exit code
    assert noted(tmp_path, code=2, fails=["a.py::shaky"]) == 2  # pytest's after a collection error
    assert not (tmp_path / "unstable").exists()


@pytest.mark.parametrize(("seconds", "code", "named"), [(2.9, 0, False), (11.9, 0, True), (12.1, 1, True)])
def test_gate_holds_plain_tests_to_three_seconds(seconds, code, named, tmp_path, capsys):
    noted(tmp_path, code=0, processor_seconds=seconds)
    found, text = reported(tmp_path, capsys)
    assert (found, "too slow for a plain test" in text) == (code, named)


def test_gate_allows_what_the_table_names_and_long_tests(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(slow.SLOW, "a.py::sound", "it trains for real")
    noted(tmp_path, code=0, processor_seconds=19.0)
    assert reported(tmp_path, capsys)[0] == 0
    noted(tmp_path, code=0, processor_seconds=19.0, fails=["b.py::long"], long=True)
    assert reported(tmp_path, capsys)[0] == 0


def test_gate_lists_long_tests_that_it_did_not_reach(tmp_path, capsys):
    noted(tmp_path, code=0, long=True, reached=False)
    code, text = reported(tmp_path, capsys)
    assert code == 0
    assert "1 long tests were not reached in the gate's time; run them before a release:\n  a.py::sound\n" in text


def test_notes_count_processes_that_live_on():
    before = processor_seconds()
    work = "print(sum(range(10_000_000)), flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", work], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        living = processor_seconds() - before
        process.communicate(b"\n")
    assert 0.0 < living <= processor_seconds() - before


def noted_by_pytest(folder, pytestconfig, *plugins):
    """Runs two plain tests and a long one; returns the notes by the tests' names."""
    tests = folder / "test_some.py"
    tests.write_text(
        "import pytest\n"
        "def test_sound(): pass\n"
        "def test_broken(): assert False\n"
        "@pytest.mark.long\n"
        "def test_long(): pass\n"
    )
    plugins = (f"Notes(Path({str(folder / 'notes')!r}))", *plugins)
    (folder / "conftest.py").write_text(
        "from pathlib import Path\nfrom tests.deadline import Deadline\nfrom tests.notes import Notes\n"
        "def pytest_configure(config):\n"
        + "".join(f"    config.pluginmanager.register({plugin})\n" for plugin in plugins)
    )
    command = ["-n", "0", "-p", "no:cacheprovider", "-m", "long or not long", "-c", "/dev/null", f"--rootdir={folder}"]
    subprocess.run(
        [sys.executable, "-m", "pytest", *command, str(tests)],
        cwd=pytestconfig.rootpath, capture_output=True, check=False,
    )  # fmt: skip
    notes = [json.loads(line) for line in (folder / "notes").read_text().splitlines()]
    return {note["test"].partition("::")[2]: note for note in notes}


@pytest.mark.long
def test_notes_of_pytest_name_what_failed(tmp_path, pytestconfig):
    notes = noted_by_pytest(tmp_path, pytestconfig)
    assert {test: (note["passed"], note["long"]) for test, note in notes.items()} == {
        "test_sound": (True, False),
        "test_broken": (False, False),
        "test_long": (True, True),
    }
    assert all(note["reached"] and note["seconds"] >= 0 and note["megabytes"] > 0 for note in notes.values())


@pytest.mark.long
def test_only_long_tests_are_left_out_after_the_deadline(tmp_path, pytestconfig):
    notes = noted_by_pytest(tmp_path, pytestconfig, "Deadline(1)")
    assert {test: note["reached"] for test, note in notes.items()} == {
        "test_sound": True,
        "test_broken": True,
        "test_long": False,
    }
