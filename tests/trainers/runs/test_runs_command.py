"""`python -m trainers.runs`: its output, its order, and its refusals."""

import itertools
import json
import math
import time

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.commands import one_paragraph, python
from tests.written_runs import write_run
from trainers.runs.__main__ import main
from trainers.runs.curves import HEIGHT, chart
from trainers.runs.figures import Curve
from trainers.runs.listing import differences
from trainers.runs.read import read_run
from trainers.runs.scale import Scale, tick_labels

NOW = 1_700_000_000.0


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(time, "time", lambda: NOW)
    write_run(tmp_path / "runs" / "late", heard=NOW - 5, rate="0.3", losses={100: 0.2, 200: 0.1})
    write_run(tmp_path / "runs" / "early", heard=NOW - 7300, exit_code=3, reason="a loss wasn't finite")
    return tmp_path


def printed(capsys, *words):
    assert main(words) == 0
    return capsys.readouterr().out


def rows(text):
    return [line.split("  ") for line in text.splitlines()]


def test_lists_runs_with_the_last_heard_of_at_the_end(folder, capsys):
    lines = printed(capsys).splitlines()
    assert lines[0].split() == ["run", "state", "step", "eval/loss", "heard"]
    early, late = lines[2:4]
    assert [x.strip() for x in early.split("   ") if x.strip()] == [
        *("runs/early", "failed (3: not finite)", "300", "0.3750 (best 0.2500 at 200)", "2 h ago"),
    ]
    assert [x.strip() for x in late.split("   ") if x.strip()] == [
        *("runs/late", "finished", "200 of 300", "0.1000", "5 s ago"),
    ]
    assert lines[4:] == ["runs/early: a loss wasn't finite"]


def test_best_that_equals_the_last_is_not_shown_with_it(folder, capsys):
    write_run(folder / "again" / "run", losses={100: 0.5, 200: 0.25, 300: 0.25001})
    assert "(best" not in printed(capsys, "again")


def test_best_run_comes_first_by_a_figure(folder, capsys):
    write_run(folder / "runs" / "without", split="test", heard=NOW)
    lines = printed(capsys, "--figure=eval/loss").splitlines()
    assert [line.split()[0] for line in lines[2:5]] == ["runs/late", "runs/early", "runs/without"]


def test_runs_that_are_named_are_compared(folder, capsys):
    out = printed(capsys, "runs/early", "runs/late")
    lines = out.splitlines()
    assert any(line.split() == ["adamw.learning_rate", "0.1", "0.3"] for line in lines)
    assert not any("MlpClassifier.sizes" in line for line in lines)
    place = lines.index("eval/loss")
    assert len(lines) == place + 1 + HEIGHT + 1
    assert sum("⡠" <= letter <= "⣿" for letter in out) > 10
    assert {line[-1] for line in lines[place + 1 : -1]} >= {"a", "b"}
    one = printed(capsys, "runs/late")
    assert "adamw" not in one
    assert "eval/loss" in one.splitlines()


def test_equal_runs_say_so(folder, capsys):
    write_run(folder / "runs" / "twin", rate="0.3")
    assert "Nothing differs" in printed(capsys, "runs/late", "runs/twin")


def test_too_many_runs_to_distinguish_are_listed_only(folder, capsys):
    paths = [str(write_run(folder / "runs" / f"r{i}")) for i in range(9)]
    assert len(printed(capsys, *paths).splitlines()) == 11
    assert len(printed(capsys, *paths[:8]).splitlines()) > 20


def test_differences_count_what_was_started_with_and_no_run_that_left_nothing(folder):
    other = write_run(folder / "runs" / "other")
    record = json.loads((other / "run.json").read_text())
    (other / "run.json").write_text(json.dumps({**record, "git": None, "devices": ["/device:GPU:0"]}))
    bare = write_run(folder / "runs" / "bare")
    (bare / "run.json").unlink()
    (bare / "config" / "operative.gin").unlink()
    found = differences([read_run(path) for path in (folder / "runs" / "late", other, bare)])
    assert found == {
        "adamw.learning_rate": ["0.3", "0.1", "–"],
        "devices": ["/device:CPU:0", "/device:GPU:0", "–"],
        "git revision": ["abc", "–", "–"],
    }


def test_json_holds_all_of_it(folder, capsys):
    write_run(folder / "runs" / "nan", losses={100: math.nan})
    found = json.loads(printed(capsys, "--json"))
    by_name = {each["run"]: each for each in found["runs"]}
    assert by_name["runs/early"]["exit_code"] == 3
    assert by_name["runs/early"]["figures"]["eval/loss"] == {
        "last": {"step": 300, "value": 0.375},
        "best": {"step": 200, "value": 0.25},
        "smallest": 0.25,
        "largest": 0.5,
    }
    assert by_name["runs/nan"]["figures"]["eval/loss"]["last"] == {"step": 100, "value": None}
    assert list(found["differences"]) == ["adamw.learning_rate"]


def test_text_of_runs_is_shown_and_not_obeyed(folder, capsys):
    path = write_run(folder / "runs" / "[red]\x1b[2J\n", exit_code=1, reason="[red]\x1b[2J", rate="'\x1b[2J'")
    with (path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 300, "split": "eval", "\\u001b[2J_loss": 1}\n')
    for words in ([], ["runs/late", str(path)], [str(path)]):
        out = printed(capsys, *words)
        assert r"[red]\x1b[2J\n: [red]\x1b[2J" in out
        assert r"eval/\x1b[2J_loss" in out
        assert "\x1b" not in out
    assert printed(capsys, r"--figure=eval/\x1b[2J_loss")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["runs/lat"], ["'runs/lat' doesn't exist", "Did you mean `runs/late`?"]),
        (["empty"], ["'empty' is no run and contains none", "`--workdir` of a run"]),
        (["file"], ["'file' is no folder"]),
        (["x" * 300], ["can't be read (File name too long)"]),
        (["--figure=eval/los"], ["`--figure` is 'eval/los'", "Did you mean `eval/loss`?"]),
        (["--figures=loss"], ["there is no flag `--figures=loss`. Did you mean `--figure`?"]),
    ],
)
def test_mistakes_are_one_paragraph(folder, capsys, words, says):
    (folder / "empty").mkdir()
    (folder / "file").touch()
    assert main(words) == 2
    one_paragraph(capsys.readouterr().err, *says)


def test_command_without_a_folder_of_runs_says_how_to_name_one(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main([]) == 2
    assert "there is no folder `runs` in" in capsys.readouterr().err


def test_command_imports_no_tensorflow(folder):
    code = "import runpy, sys; sys.modules['tensorflow'] = None; runpy.run_module('trainers.runs', run_name='__main__')"
    done = python("-c", code, "runs/late", "runs/early", cwd=folder)
    assert (done.returncode, done.stderr) == (0, "")
    assert "adamw.learning_rate" in done.stdout


# --- Charts and scales -----------------------------------------------------------------------------------------------


def lines_of(*curves, ascii_only=False):
    letters = dict(zip("abc", curves, strict=False))
    return [line.plain for line in chart("eval/loss", letters, width=60, ascii_only=ascii_only)]


def test_falling_line_goes_from_the_top_left_to_the_bottom_right():
    title, *drawn, steps = lines_of(Curve((0, 100), (4.0, 2.0)), ascii_only=True)
    assert title == "eval/loss"
    places = [line.partition("|")[2] for line in drawn]
    columns = [[i for i, letter in enumerate(place) if letter == "*"] for place in places]
    assert all(columns)
    assert [each[0] for each in columns] == sorted(each[0] for each in columns)
    assert columns[0][0] == 0
    assert places[-1].endswith("*a")
    assert sorted({i for each in columns for i in each}) == [*range(columns[-1][-1] + 1)]  # without a gap
    assert drawn[0].split()[0] == "4"
    assert drawn[-1].split()[0] == "2"
    assert steps.split() == ["step", "0", "100"]


def test_curves_end_in_their_letters_and_nan_is_left_out():
    _, *drawn, _ = lines_of(Curve((0, 100), (1.0, 3.0)), Curve((0, 50), (1.0, 1.0)), Curve((0,), (math.nan,)))
    assert drawn[0].endswith("a")
    assert drawn[-1].endswith("b")
    assert "c" not in "".join(drawn)


def test_letter_has_place_for_all_of_its_dots():
    _, *drawn, _ = lines_of(Curve((0, 100), (1.0, 1.0)))
    (line,) = [letters for each in drawn if (letters := each.partition("│")[2].strip())]
    *dots, end = line
    assert end == "a"
    assert len(dots) > 40
    assert {(ord(letter) - 0x2800).bit_count() for letter in dots} == {2}


def test_decade_is_drawn_by_logarithms():
    title, *drawn, _ = lines_of(Curve((0, 1, 2), (10.0, 1.0, 0.1)))
    assert title == "eval/loss, logarithmic"
    labels = {i: line.partition("│")[0].strip() for i, line in enumerate(drawn)}
    rows = {float(label): i for i, label in labels.items() if label}
    assert abs((rows[1.0] - rows[10.0]) - (rows[0.1] - rows[1.0])) <= 1


def test_curve_that_grows_towards_a_bound_is_drawn_evenly():
    title, *drawn, _ = chart("eval/accuracy", {"a": Curve((0, 1), (0.05, 1.0))}, width=60, ascii_only=False)
    assert title.plain == "eval/accuracy"
    labels = [float(label) for line in drawn if (label := line.plain.partition("│")[0].strip())]
    assert labels == [1.0, 0.8, 0.6, 0.4, 0.2]


FINITE = st.floats(allow_nan=False, allow_infinity=False, min_value=-1e300, max_value=1e300)


@settings(deadline=None, max_examples=50)
@given(st.lists(FINITE, min_size=1, max_size=20), st.booleans())
def test_scale_holds_its_values_and_its_ticks_rise(values, even):
    scale = Scale.of(values, even=even)
    assert all(-1e-6 <= scale.place(value) <= 1 + 1e-6 for value in values)
    ticks = scale.ticks()
    assert all(a < b for a, b in itertools.pairwise(ticks))
    assert len(ticks) <= 12
    assert all(-1e-6 <= scale.place(tick) <= 1 + 1e-6 for tick in ticks)


@settings(deadline=None, max_examples=50)
@given(st.lists(FINITE, min_size=1, max_size=20))
@example([0.0, 5e-324])
@example([1e-323, 5e-324])
def test_labels_say_their_ticks(values):
    ticks = Scale.of(values).ticks()
    labels = tick_labels("loss", ticks)
    assert len({*labels}) == len(ticks)
    said = [float(label.replace(",", "")) for label in labels]
    assert said == pytest.approx(ticks, rel=0.01)
    largest = max(map(abs, values))
    if 1e-38 < largest < 1e38 and max(values) - min(values) >= 0.1 * largest:
        assert max(map(len, labels)) <= 9  # as much as fits


@settings(deadline=None, max_examples=50)
@given(st.lists(FINITE, min_size=1, max_size=5))
def test_any_finite_values_can_be_drawn(values):
    assert len(lines_of(Curve(tuple(range(len(values))), tuple(values)))) == HEIGHT + 2
