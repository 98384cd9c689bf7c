"""Studies: trials asked for, pruned, told and repeated; long, as its cases share one toy study."""

import contextlib
import itertools
import os
import signal
import socket
import sqlite3
import sys
from pathlib import Path

import optuna
import pytest
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState

from core.errors import ConfigurationError, NoRoomError
from tests.commands import one_paragraph
from tests.trainers.sweep.sweep_lab import LINEAR, command, ran, study, write_curve
from trainers.runs.spread import Spread
from trainers.sweep.__main__ import main
from trainers.sweep.repeats import DEAD_SECONDS, HEARD_SECONDS
from trainers.sweep.study import is_over
from trainers.sweep.summary import Trial, lead

RATE = "--space=sgd.learning_rate=log(1e-3, 1)"
SEEDS = "--over=seed=[0, 1]"
DATABASE = "sqlite:///s/study.db"


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def opened(storage=DATABASE):
    """Returns the study as another program would open it."""
    if "://" not in storage:
        storage = optuna.storages.JournalStorage(JournalFileBackend(storage))
    return optuna.load_study(study_name="s", storage=storage)


def states():
    return [trial.state.name for trial in opened().trials]


def distance(params):
    """Returns the losses of a run: their last is the distance of the rate from 0.1, in powers of ten, plus the seed."""
    loss = abs(float(params["sgd.learning_rate"]) - 0.1) + 0.5 * int(params.get("Experiment.seed", 0))
    return [2 + loss, 1 + loss, loss]


@pytest.mark.parametrize("storage", [DATABASE, "journal.log"])
@pytest.mark.parametrize("sampler", ["tpe", "random", "cmaes"])
def test_trial_is_the_mean_over_its_seeds_for_optunas_own_client(storage, sampler):
    words = [RATE, "--space=sgd.momentum=uniform(0, 0.9)", SEEDS, "--trials=3", f"--sampler={sampler}"]
    points = ran(study(*words, f"--storage={storage}"), distance)
    assert [point.name for point in points] == [f"trial={i},seed={seed}" for i in range(3) for seed in range(2)]
    found = opened(storage)
    assert found.metric_names == ["eval/loss"]
    assert found.direction.name == "MINIMIZE"
    for trial, point in zip(found.trials, points[::2], strict=True):
        assert point.params[0] == f"sgd.learning_rate = {trial.params['sgd.learning_rate']!r}"
        loss = abs(trial.params["sgd.learning_rate"] - 0.1)
        assert trial.state == TrialState.COMPLETE
        assert trial.value == pytest.approx(loss + 0.25)
        assert trial.user_attrs["values"] == pytest.approx({"0": loss, "1": loss + 0.5})
        assert trial.intermediate_values == pytest.approx({10: 2 + loss, 20: 1 + loss, 30: loss})
    assert is_over(command(*words, f"--storage={storage}").search)


def test_study_is_created_after_the_check_of_its_spaces(monkeypatch):
    monkeypatch.setattr("trainers.sweep.__main__._check", lambda *_: 2)
    words = ["--space=sgd.learning_rat=log(1e-3, 1)", "--trials=1", "--figure=eval/loss"]
    assert main([*words, "--", LINEAR, "--workdir=s"]) == 2
    assert len(ran(study(RATE, "--trials=1"), distance)) == 1  # the corrected command


def test_grid_in_a_storage_has_each_point_once():
    words = ["--over=sgd.learning_rate=[0.1, 1.0]", "--over=sgd.momentum=[0.0, 0.9]", f"--storage={DATABASE}"]
    points = ran(study(*words), distance)
    wanted = itertools.product(
        [f"sgd.learning_rate = {x}" for x in (0.1, 1.0)], ["sgd.momentum = 0.0", "sgd.momentum = 0.9"]
    )
    assert sorted(point.params for point in points) == sorted(map(list, wanted))


def test_processes_that_begin_at_once_make_one_study():
    children = []
    for _ in range(4):
        if not (child := os.fork()):
            study(RATE, "--trials=1")
            os._exit(0)
        children.append(child)
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * 4
    assert len(optuna.get_all_study_names(DATABASE)) == 1


def test_search_that_another_process_begins_between_two_reads_is_joined(monkeypatch):
    begun = []

    def before_the_other_begins(read):
        def reading(*arguments, **settings):
            found = read(*arguments, **settings)
            if not begun:
                begun.append(True)
                other = study(RATE, "--trials=2")
                with other.claimed():
                    other.next()
            return found

        return reading

    for name, kind, read in (
        ("get_trials", lambda x: x, optuna.Study.get_trials),
        ("user_attrs", property, optuna.Study.user_attrs.fget),
    ):
        monkeypatch.setattr(optuna.Study, name, kind(before_the_other_begins(read)))
    study(RATE, "--trials=2")
    assert opened().trials
    assert len(optuna.get_all_study_names(DATABASE)) == 1


@pytest.mark.long
def test_trial_of_a_killed_process_is_repeated_in_its_folder():
    words = [RATE, SEEDS, "--trials=1"]
    child = os.fork()
    if not child:
        plan = study(*words)
        with plan.claimed():
            point = plan.next()
            write_curve(Path("s"), point, 0.5)
            plan.ended(point, 0)
            plan.next()
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    assert states() == ["RUNNING"]
    points = ran(study(*words), lambda params: [1.5])
    assert [point.name for point in points] == ["trial=0,seed=1"]
    first, second = opened().trials
    assert (first.state, second.state) == (TrialState.FAIL, TrialState.COMPLETE)
    assert (second.params, second.value) == (first.params, 1.0)
    with pytest.warns(optuna.exceptions.ExperimentalWarning):
        assert optuna.storages.RetryHeartbeatStaleTrialCallback.retried_trial_number(second) == 0
    assert study(*words).progress() == "1 of 1 trials"
    assert not [*Path("s").glob(".sweep-*")]


def test_trial_of_a_living_process_is_left_to_it():
    words = [RATE, "--trials=1"]
    one, other = study(*words), study(*words)
    with one.claimed():
        point = one.next()
        with other.claimed():
            assert other.next() is None
        write_curve(Path("s"), point, 0.5)
        assert one.ended(point, 0) == (0, "eval/loss 0.5000")
    assert states() == ["COMPLETE"]


def test_trial_of_another_machine_is_repeated_when_it_has_been_silent(monkeypatch):
    now = [1000.0]
    words = [RATE, "--trials=1"]
    near, far = study(*words, clock=lambda: now[0]), study(*words, clock=lambda: now[0])
    with far.claimed(), near.claimed():
        with monkeypatch.context() as elsewhere:
            elsewhere.setattr(socket, "gethostname", lambda: "far")
            point = far.next()
        now[0] += DEAD_SECONDS
        far.stops(point)  # says that it lives
        now[0] += DEAD_SECONDS
        assert near.next() is None
        now[0] += HEARD_SECONDS
        again = near.next()
        assert (again.name, again.params) == (point.name, point.params)
        write_curve(Path("s"), again, 0.5)
        assert near.ended(again, 0) == (0, "eval/loss 0.5000")
        assert far.stops(point)
        assert "another process" in far.ended(point, 75)[1]
    assert states() == ["FAIL", "COMPLETE"]


def test_stopped_trial_waits_for_the_same_command():
    words = [RATE, "--trials=2"]
    plan = study(*words)
    with plan.claimed():
        point = plan.next()
        assert plan.ended(point, 75) == (75, None)
    assert states() == ["FAIL", "WAITING"]
    assert ran(study(*words), distance)[0].params == point.params
    assert states() == ["FAIL", "COMPLETE", "COMPLETE"]


@pytest.mark.long
def test_worse_trial_is_pruned_by_the_metrics_of_its_first_seed():
    words = [RATE, SEEDS, "--pruner=median"]
    ran(study(*words, "--trials=5"), lambda params: [0.5] * 3)
    plan = study(*words, "--trials=6")
    with plan.claimed():
        point = plan.next()
        assert not plan.stops(point)  # it has no metrics yet
        write_curve(Path("s"), point, 9.0, 9.0, exit_code=None)
        assert plan.stops(point)
        assert not plan.stops(point)  # once is enough
        assert plan.ended(point, 75) == (0, "pruned at step 10")
        assert plan.next() is None
    assert states() == ["COMPLETE"] * 5 + ["PRUNED"]


def test_hyperband_prunes_in_brackets_between_the_first_measured_step_and_the_last():
    ends = []
    plan = study(RATE, "--trials=24", "--pruner=hyperband", "--storage=journal.log")
    with plan.claimed():
        while point := plan.next():
            write_curve(Path("s"), point, *[1.0 + len(ends)] * 30)  # each trial is worse than those before
            ends.append(plan.ended(point, 75 if plan.stops(point) else 0)[1])
    assert {end for end in ends if "pruned" in end} == {f"pruned at step {step}" for step in (10, 30, 90, 270)}


def test_runs_that_diverge_count_as_pruned_and_failed_ones_as_failed():
    plan = study(RATE, SEEDS, "--trials=3")
    with plan.claimed():
        assert plan.ended(plan.next(), 3) == (0, "not finite, which counts as pruned")
        point = plan.next()
        write_curve(Path("s"), point, float("nan"))
        assert plan.ended(point, 0) == (0, "the last eval/loss isn't finite, which counts as pruned")
        assert plan.ended(plan.next(), 4) == (4, None)
        assert plan.next() is None
    assert states() == ["PRUNED", "PRUNED", "FAIL"]


def _until_lost(plan):
    """Runs a trial whose storage is damaged meanwhile."""
    with plan.claimed():
        point = plan.next()
        write_curve(Path("s"), point, 0.5)
        os.rename("s/study.db", "kept.db")
        Path("s/study.db").write_text("this is no database any more, whatever it was before that")
        assert not plan.stops(point)
        assert not plan.stops(point)
        assert plan.ended(point, 0) == (0, None)
        assert plan.next() is None
        assert plan.progress() == "0 of 1 trials"


def test_storage_that_fails_ends_the_search_and_harms_no_run(capsys):
    now = [0.0]
    words = [RATE, SEEDS, "--trials=1"]
    plan = study(*words, clock=lambda: now[0])
    with pytest.raises(ConfigurationError) as caught:
        _until_lost(plan)
    assert "the same command reads the finished runs" in str(caught.value)
    one_paragraph(capsys.readouterr().err.replace("warning", "error"), "can't be used", "The runs continue")
    os.rename("kept.db", "s/study.db")
    assert [point.name for point in ran(study(*words), lambda params: [1.5])] == ["trial=0,seed=1"]
    assert opened().trials[-1].value == 1.0


def other_program():
    optuna.create_study(study_name="s", storage="sqlite:///other.db").optimize(lambda trial: 0.0, n_trials=1)


def old_format():
    ran(study(RATE, "--trials=1"), distance)
    found = opened()
    found.set_user_attr("tapeloop", {**found.user_attrs["tapeloop"], "format": 0})


def newer_optuna():
    ran(study(RATE, "--trials=1"), distance)
    with contextlib.closing(sqlite3.connect("s/study.db")) as database, database:
        database.execute("update alembic_version set version_num = 'v9.9.0.a'")
        database.execute("update version_info set schema_version = 99, library_version = '9.9.0'")


@pytest.mark.parametrize(
    ("before", "words", "says"),
    [
        (newer_optuna, [], ["`sqlite:///s/study.db` can't be used", "set up by optuna 9.9.0", "Nothing was run"]),
        (other_program, ["--storage=sqlite:///other.db"], ["`s` in `sqlite:///other.db` wasn't made by this command"]),
        (old_format, [], ["has format 0, and this version of Tapeloop knows 1"]),
        (
            lambda: ran(study(RATE, "--trials=1"), distance),
            [SEEDS],
            ["has the seeds {}", "give another `--workdir=DIR`"],
        ),
        (
            lambda: ran(study(RATE, "--trials=1"), distance),
            ["--", "--gin_param=Trainer.seed = 3"],
            ["was begun with `Trainer.seed = None`", "`--allow_config_change` after the `--`"],
        ),
        (
            lambda: Path("text.log").write_text("no journal"),
            ["--storage=text.log"],
            ["the storage `text.log` can't be used", "Nothing was run"],
        ),
        (lambda: Path("file").touch(), ["--storage=sqlite:///file/x.db"], ["can't be used", "File exists"]),
        (lambda: None, ["--storage=nosql://me:secret@host/x"], ["`nosql://me:***@host/x`", "Can't load plugin"]),
        (lambda: None, ["--storage=mysql+none://me:secret@host/x"], ["`mysql+none://me:***@host/x`"]),
        (
            lambda: None,
            ["--storage=mysql://me:secret@host/x"],
            ["`mysql://me:***@host/x`", "`pip install mysqlclient`"],
        ),
    ],
)
def test_mistakes_are_one_paragraph_and_show_no_password(before, words, says, capsys, monkeypatch):
    monkeypatch.setattr("trainers.sweep.__main__._check", lambda *_: 0)
    before()
    words, rest = ([], words[1:]) if words[:1] == ["--"] else (words, [])
    assert main([RATE, "--trials=1", "--figure=eval/loss", *words, "--", LINEAR, "--workdir=s", *rest]) == 2
    error = capsys.readouterr().err
    one_paragraph(error, *says)
    assert "secret" not in error


@pytest.mark.parametrize("storage", ["sqlite:///s/study.db", "s/study.log"])
def test_full_disk_is_an_error_about_room(storage):
    import resource

    child = os.fork()
    if not child:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (2048, 2048))
        try:
            ran(study(RATE, "--trials=100", f"--storage={storage}"), distance)
        except NoRoomError as error:
            os._exit(NoRoomError.exit_code if "can't be written" in str(error) else 1)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == NoRoomError.exit_code


def test_metric_that_the_first_run_lacks_can_be_corrected():
    wrong = study(RATE, "--trials=1")
    with wrong.claimed():
        point = wrong.next()
        write_curve(Path("s"), point, 0.5, split="test")
        with pytest.raises(ConfigurationError, match="none of these runs has"):
            wrong.ended(point, 0)
    assert states() == ["FAIL", "WAITING"]
    ran(study(RATE, "--trials=1", figure="test/loss"), distance)
    assert opened().metric_names == ["test/loss"]
    assert opened().trials[-1].value == 0.5


def test_search_without_optuna_says_what_to_install_and_a_grid_needs_none(capsys, monkeypatch):
    for name in ("study", "opening", "repeats", "storage"):
        monkeypatch.delitem(sys.modules, f"trainers.sweep.{name}")
    monkeypatch.setitem(sys.modules, "optuna", None)
    assert main([RATE, "--trials=1", "--figure=eval/loss", "--", LINEAR]) == 2
    one_paragraph(capsys.readouterr().err, "a search needs Optuna", "`pip install -e '.[optuna]'` installs it")
    monkeypatch.setattr("trainers.sweep.__main__._check", lambda *_: 3)
    assert main(["--over=sgd.learning_rate=[0.1]", "--", LINEAR]) == 3
    assert capsys.readouterr().out == "1 runs in `runs/digits_linear-sweep`: 0 finished before\n"


@pytest.mark.parametrize(
    ("spreads", "says"),
    [
        ([Spread(0.1, None, 1), Spread(0.2, None, 1)], "one seed, which can't separate a difference from chance"),
        ([Spread(0.1, 0.1, 2), Spread(0.2, 0.05, 2)], "a leads b by no more than seeds of one setting differ"),
        ([Spread(0.1, 0.01, 2), Spread(0.2, 0.05, 2)], "a leads b by 0.1000, 2.0 times the standard deviation"),
        ([Spread(0.1, 0.01, 2)], ""),
    ],
)
def test_lead_is_compared_with_the_spread_over_seeds(spreads, says):
    found = lead("eval/loss", [Trial(name, [], spread) for name, spread in zip("ab", spreads, strict=False)])
    assert says in found if says else found == ""
