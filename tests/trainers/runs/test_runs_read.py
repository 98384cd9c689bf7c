"""Reading a run's folder: a real one, and any other content."""

import fcntl
import json
import math
import os

import pytest

from core.errors import ConfigurationError
from tests import rights
from tests.commands import CONFIGS, run
from tests.written_runs import LOSSES, write_run
from trainers.runs.figures import Curve, best, main_figures
from trainers.runs.find import find_runs
from trainers.runs.read import SIGNS, is_run, read_run
from trainers.workdir import Workdir

DIGITS = [f"--gin_file={CONFIGS / 'digits_linear.gin'}", "--gin_param=Trainer.evaluate_every=10"]


def test_a_real_run_is_read_as_it_was_written(tmp_path):
    flags = [*DIGITS, "--gin_param=Trainer.steps=20", "--gin_param=Trainer.log_every=10", "--workdir=runs/a"]
    assert run(*flags, cwd=tmp_path).returncode == 0
    found = read_run(tmp_path / "runs" / "a")
    assert (found.state, found.exit_code, found.step, found.steps, found.damage) == ("finished", 0, 20, 20, ())
    lines = [json.loads(line) for line in (tmp_path / "runs" / "a" / "metrics.jsonl").read_text().splitlines()]
    for split in ("train", "eval"):
        steps, losses = zip(*[(line["step"], line["loss"]) for line in lines if line["split"] == split], strict=True)
        assert found.figures[f"{split}/loss"] == Curve(steps, losses)
        assert steps == (10, 20)
    assert (
        found.figures["eval/loss"].last[1] == json.loads((found.path / "result.json").read_text())["evaluation"]["loss"]
    )
    assert found.configuration["Trainer.steps"] == "20"
    assert found.configuration["test/digits.split"] == "'test'"
    assert found.configuration["Experiment.deterministic"] == "False"  # a default
    assert found.record["versions"]["tapeloop"]


def test_real_runs_that_came_to_nothing_are_read(tmp_path):
    run(*DIGITS, "--gin_param=Trainer.stops=20", "--workdir=runs/mistake", cwd=tmp_path)
    killed = run(
        *DIGITS, "--kill_after_step=10", "--gin_param=Trainer.chunk_steps=10", "--workdir=runs/k", cwd=tmp_path
    )
    assert killed.returncode == -9
    mistake, killed = read_run(tmp_path / "runs" / "mistake"), read_run(tmp_path / "runs" / "k")
    assert mistake.ending == "never began (2: configuration)"
    assert "Did you mean `steps`?" in mistake.reason
    assert (killed.state, killed.exit_code, killed.step) == ("stopped", None, 10)
    assert "it was killed" in killed.reason
    assert find_runs([str(tmp_path)]) == [killed.path, mistake.path]


@pytest.mark.parametrize(
    ("code", "state", "ending"),
    [
        (0, "finished", "finished"),
        (75, "stopped", "stopped"),
        (130, "stopped", "stopped"),
        (3, "failed", "failed (3: not finite)"),
        (99, "failed", "failed (99: none of our exit codes)"),
        (None, "stopped", "stopped"),
    ],
)
def test_states(tmp_path, code, state, ending):
    found = read_run(write_run(tmp_path / "a", exit_code=code, reason="because"))
    assert (found.state, found.ending, found.exit_code) == (state, ending, code)
    assert code is None or found.reason == "because"
    assert found.step == 300


def test_the_step_is_the_last_that_anything_tells_of(tmp_path):
    path = write_run(tmp_path / "a")
    assert read_run(path).step == max(LOSSES)
    Workdir(path).write_result(step=350, exit_code=3, reason="", evaluation={})  # between two lines of metrics
    assert read_run(path).step == 350
    (path / "checkpoints" / "step-000000400").mkdir(parents=True)
    (path / "checkpoints" / "step-strange").mkdir()
    assert read_run(path).step == 400


@pytest.mark.parametrize("name", SIGNS)
def test_a_run_is_heard_of_when_it_last_wrote(tmp_path, name):
    path = write_run(tmp_path / "a", heard=1000.0)
    (path / name).touch()
    assert read_run(path).heard == (path / name).stat().st_mtime > 1000.0


def test_run_that_holds_its_lock_is_running_and_looking_takes_no_lock(tmp_path, monkeypatch):
    path = write_run(tmp_path / "a")
    workdir = Workdir(path)
    workdir.lock()
    monkeypatch.setattr(fcntl, "flock", None)
    found = read_run(path)
    assert (found.state, found.exit_code, found.reason) == ("running", None, "")
    monkeypatch.undo()
    workdir._lock.close()
    assert read_run(path).state == "finished"


def test_a_process_that_can_not_be_asked_about_its_lock_is_believed(tmp_path, monkeypatch):
    path = write_run(tmp_path / "a")
    inode = (path / ".lock").touch() or (path / ".lock").stat().st_ino
    locks = tmp_path / "locks"
    monkeypatch.setattr("trainers.workdir.LOCKS", locks)
    for line, state in [
        (f"1: FLOCK  ADVISORY  WRITE 0 08:02:{inode} 0 EOF\n", "running"),
        (
            f"1: FLOCK  ADVISORY  WRITE {os.getpid()} 08:02:{inode} 0 EOF\n",
            "finished",
        ),  # has another file of that number
        (f"1: FLOCK  ADVISORY  WRITE 0 08:02:{inode + 1} 0 EOF\n", "finished"),
        (f"1: -> FLOCK  ADVISORY  WRITE 0 08:02:{inode} 0 EOF\n", "finished"),  # waits for it
        (f"1: POSIX  ADVISORY  WRITE 0 08:02:{inode} 0 EOF\n", "finished"),
    ]:
        locks.write_text(line)
        assert read_run(path).state == state, line


def test_lines_cut_off_or_without_a_number_are_no_damage(tmp_path):
    path = write_run(tmp_path / "a", losses={**LOSSES, 400: math.nan})
    with (path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 500, "split": "eval", "lo')
    found = read_run(path)
    assert found.damage == ()
    curve = found.figures["eval/loss"]
    assert curve.steps == (100, 200, 300, 400)
    assert math.isnan(curve.last[1])
    assert best("eval/loss", curve) == (200, 0.25)


@pytest.mark.parametrize(
    ("name", "content", "damage"),
    [
        (
            "metrics.jsonl",
            '\n{}\n{"step": 1, "split": "eval", "loss": 2}\n[1]\n',
            "lines of `metrics.jsonl` can't be read: 3, the first of them line 1",
        ),
        (
            "metrics.jsonl",
            '{"step": 1, "split": "eval", "a": {}}\n',
            "can't be read: 1, the first of them line 1",
        ),
        (
            "metrics.jsonl",
            f'{{"step": 1, "split": "eval", "a": 1{"0" * 400}}}\n',
            "lines of `metrics.jsonl` can't be read: 1,",
        ),
        ("metrics.jsonl", '{"step": -1, "split": "eval", "a": 1}\n', "lines of `metrics.jsonl` can't be read: 1,"),
        ("metrics.jsonl", "[" * 100_000 + "\n", "lines of `metrics.jsonl` can't be read: 1,"),
        ("run.json", "{", "`run.json` holds no JSON object"),
        ("result.json", "[]", "`result.json` holds no JSON object"),
        ("config/operative.gin", "Trainer.steps = = 3", "operative.gin:1 can't be read as gin"),
    ],
)
def test_damage_is_named_and_the_rest_is_read(tmp_path, name, content, damage):
    path = write_run(tmp_path / "a")
    (path / name).write_text(content)
    found = read_run(path)
    assert damage in "".join(found.damage)
    assert len(found.damage) == 1
    assert (found.figures == {}) == (name == "metrics.jsonl" and '"loss"' not in content)
    assert (found.configuration == {}) == (name == "config/operative.gin")


def test_pipes_are_not_waited_for(tmp_path):
    path = write_run(tmp_path / "a")
    for name in ("metrics.jsonl", "result.json", "config/operative.gin"):
        (path / name).unlink()
        os.mkfifo(path / name)
    found = read_run(path)
    assert len(found.damage) == 3
    assert found.state == "stopped"


@pytest.mark.parametrize("name", [*SIGNS, "config", "warnings.jsonl", "checkpoints"])
def test_file_that_may_not_be_read_is_named_and_the_rest_is_read(tmp_path, name):
    path = write_run(tmp_path / "runs" / "a")
    if not (path / name).exists():
        (path / name).touch()
    (path / name).chmod(0)
    with rights.given_up():
        found = read_run(path)
    assert (len(found.damage) == 1) == (name not in (".lock", "checkpoints"))
    assert (found.figures == {}) == (name == "metrics.jsonl")
    assert (found.configuration == {}) == (name == "config")


def test_a_folder_that_may_not_be_read_hides_no_other(tmp_path):
    runs = write_run(tmp_path / "runs" / "a").parent
    closed = write_run(runs / "closed")
    closed.chmod(0)
    with rights.given_up():
        assert find_runs([str(runs)]) == [runs / "a"]
        with pytest.raises(
            ConfigurationError, match=r"closed' can't be read \(Permission denied\): give a run's folder"
        ):
            find_runs([str(closed)])


def test_a_folder_with_nothing_but_a_lock_is_a_run_that_never_began(tmp_path):
    (tmp_path / ".lock").touch()
    found = read_run(tmp_path)
    assert (found.ending, found.step, found.steps, found.figures) == ("never began", 0, None, {})


def test_macros_are_read_by_their_values_and_circles_end(tmp_path):
    path = write_run(tmp_path / "a")
    (path / "config" / "operative.gin").write_text(
        "a = %b\nb = [%a, 1]\nx.y = {'k': (%b, %c)}\nc = @f()\nx.z = %none\n"
    )
    assert read_run(path).configuration == {"x.y": "{'k': ([%b, 1], @f())}", "x.z": "%none"}


def test_runs_are_found_once_and_not_within_runs(tmp_path):
    first, second = write_run(tmp_path / "runs" / "a"), write_run(tmp_path / "runs" / "sweep" / "b")
    write_run(first / "inner")
    write_run(tmp_path / "runs" / ".hidden")
    write_run(tmp_path / "runs" / "1" / "2" / "3" / "4")
    assert find_runs([str(tmp_path / "runs"), str(second)]) == [first, second]
    assert is_run(first)
    assert not is_run(tmp_path / "runs")


def test_the_main_figures_are_held_out_and_have_a_best():
    def figures(*names):
        return dict.fromkeys(names, Curve((1,), (1.0,)))

    classifier = figures("train/loss", "train/accuracy", "eval/data_wait", "eval/loss", "eval/accuracy", "eval/auc")
    assert main_figures([classifier, figures("train/loss", "train/accuracy")]) == [
        *("eval/loss", "eval/accuracy", "train/loss"),
    ]
    assert main_figures([figures("train/d/loss", "train/g/loss", "train/step_seconds")]) == []


def test_best_is_by_name():
    curve = Curve((1, 2, 3), (0.5, 0.25, 0.25))
    assert best("eval/loss", curve) == (2, 0.25)  # the first of equals
    assert best("eval/top_5_accuracy", curve) == (1, 0.5)
    assert best("train/d/loss", curve) is None
    assert best("eval/noisy/loss", curve) == (2, 0.25)  # of a source
    assert best("eval/accuracy_error", curve) is None
    assert best("eval/loss", Curve((1,), (math.nan,))) is None
