"""`python -m trainers.sweep`: its refusals, the runs to start, and the final table."""

import shutil
import sys
from textwrap import dedent

import pytest

from core.errors import ConfigurationError
from tests.commands import CONFIGS, one_paragraph
from tests.trainers.sweep.sweep_lab import check_in_fork, write_point
from tests.written_runs import write_run
from trainers.runs.find import find_runs
from trainers.runs.spread import Spread
from trainers.sweep.__main__ import main, parse
from trainers.sweep.plan import Sweep
from trainers.sweep.pool import Job

LINEAR = f"--gin_file={CONFIGS / 'digits_linear.gin'}"
OVERS = ["--over=sgd.learning_rate = [0.1, 0.2]", "--over=seed = [0, 1, 2]"]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_table_has_means_and_spreads_over_seeds(folder, capsys):
    for seed, losses in enumerate([0.5, 0.25, 0.75]):
        write_point(folder / "runs" / "digits_linear-sweep", 0.1, seed, losses)
        write_point(folder / "runs" / "digits_linear-sweep", 0.2, seed, 0.125)
    assert main([*OVERS, "--", LINEAR]) == 0
    first, _, head, _, *rows = capsys.readouterr().out.splitlines()
    assert first == "6 runs in `runs/digits_linear-sweep`: 6 finished before"
    assert head.split() == ["sgd.learning_rate", "runs", "eval/loss"]
    assert [row.split() for row in rows] == [
        ["0.1", "3", "0.5000", "±", "0.2500"],
        ["0.2", "3", "0.1250", "±", "0.0000", "best"],
    ]


def test_run_of_another_configuration_that_is_there_counts_for_nothing(folder, capsys, monkeypatch):
    write_point(folder / "s", 0.1, 0, 0.5)
    write_run(folder / "s" / "learning_rate=0.1,seed=1", losses={20: 1000.0})
    monkeypatch.setattr("trainers.sweep.__main__._check", lambda *_: 0)
    refused = [sys.executable, "-c", "raise SystemExit(2)"]
    monkeypatch.setattr(Sweep, "job", lambda self, point: Job(point.name, refused, folder / "log"))
    words = ["--over=sgd.learning_rate = [0.1]", "--over=seed = [0, 1]", "--", LINEAR, "--workdir=s"]
    assert main(words) == 2
    _, outcome, _, _, _, row = capsys.readouterr().out.splitlines()
    assert "failed (2: configuration). Its output is in `" in outcome
    assert row.split() == ["0.1", "1", "of", "2", "0.5000"]


def test_run_counts_as_finished_by_its_configuration_and_result(folder):
    def finished(*words):
        sweep = parse([*OVERS, "--", LINEAR, "--workdir=s", *words]).sweep
        return sum(map(sweep.is_finished, sweep.points))

    for i, how in enumerate([{}, {"exit_code": 75}, {"exit_code": None}]):
        write_point(folder / "s", 0.1, i, 0.5, **how)
    assert finished() == 1
    assert finished("--gin_param=Trainer.steps = 9") == 0


def test_point_is_run_by_the_same_flags_in_a_folder_of_its_own(folder):
    (folder / "flags").write_text(f"{LINEAR}\n--workdir=s\n--gin_param=Trainer.steps = 9\n")
    sweep = parse([OVERS[1], "--", "--flagfile=flags", "--allow_config_change", "--verbosity=-1"]).sweep
    assert isinstance(sweep, Sweep)
    _, _, module, *words = sweep.job(sweep.points[1]).command
    assert module == "trainers.main"
    assert sorted(words) == sorted(
        [
            LINEAR,
            "--gin_param=Trainer.steps = 9",
            "--gin_param=Experiment.seed = 1",
            "--allow_config_change=True",
            "--verbosity=-1",
            "--workdir=s/seed=1",
        ]
    )
    from trainers.main import parse as parse_main

    assert parse_main(words).allow_config_change


def test_spreads():
    assert Spread.of([1.0, 3.0]) == Spread(2.0, 2**0.5, 2)
    assert str(Spread.of([1.0, float("nan")]).mean) == "nan"
    assert Spread.of([]).count == 0


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--", LINEAR], ["`--over` is missing"]),
        (OVERS, ["the flags of `trainers.main` are missing"]),
        ([*OVERS, "--at_once=0", "--", LINEAR], ["`--at_once` is 0", "1 or more"]),
        ([*OVERS, "--figure=loss", "--", LINEAR], ["`--figure` is 'loss'", "a split and a name"]),
        ([*OVERS, "--gin_file=x", "--", LINEAR], ["there is no flag `--gin_file=x`", "after a `--`"]),
        ([*OVERS, "--", LINEAR, "--mode=evaluate"], ["`--mode=evaluate` has no effect in a sweep"]),
        ([*OVERS, "--", LINEAR, "--eager"], ["`--eager` has no effect in a sweep"]),
        ([*OVERS, "--", LINEAR, "--workdir=s3://a/b"], ["`--workdir` is 's3://a/b'", "written to a local folder"]),
        ([*OVERS, "--", LINEAR, "--workdir=run"], ["`run` holds a single run", "--workdir=DIR"]),
        ([*OVERS, "--", "--gin_file=none.gin"], ["there is no such gin file"]),
        ([*OVERS, "--", LINEAR, f"--workdir={'x' * 300}"], ["can't be written: File name too long"]),
        (["--over=seed=[]", "--", LINEAR], ["the list is empty"]),
        (["--over=seed=3", "--", LINEAR], ["`--over` is 'seed=3', which has no list of values"]),
    ],
)
def test_mistakes_are_one_paragraph(folder, capsys, monkeypatch, words, says):
    write_run(folder / "run")
    monkeypatch.setattr("trainers.sweep.__main__._check", lambda *_: 0)
    assert main(words) == 2
    one_paragraph(capsys.readouterr().err, *says)


def test_figure_that_a_finished_run_lacks_is_refused_before_another_begins(folder, capsys):
    write_point(folder / "s", 0.1, 0, 0.5)
    assert main([*OVERS, "--figure=eval/los", "--", LINEAR, "--workdir=s"]) == 2
    error = capsys.readouterr().err
    assert "`--figure` is 'eval/los', which none of these runs has. Did you mean `eval/loss`?" in error
    assert error.count("\n") == 1
    assert [path.name for path in (folder / "s").iterdir()] == ["learning_rate=0.1,seed=0"]


def test_figure_that_the_first_run_lacks_is_refused_behind_it(folder, capsys, monkeypatch):
    for rate in (0.1, 0.2):
        write_point(folder / "made", rate, None, 0.5)

    def job(self, point):
        copy = ["cp", "-r", f"made/{point.name}", f"s/{point.name}"]
        return Job(point.name, copy, folder / f"{point.name}.log")

    monkeypatch.setattr(Sweep, "job", job)
    monkeypatch.setattr("trainers.sweep.__main__._check", lambda *_: 0)
    words = [OVERS[0], "--", LINEAR, "--workdir=s"]
    assert main(["--figure=eval/los", *words]) == 2
    told = capsys.readouterr()
    assert [line[:6] for line in told.out.splitlines()] == ["2 runs", "1 of 2"]
    assert "Did you mean `eval/loss`?" in told.err
    assert "`--figure`, resumes the sweep" in told.err
    assert not (folder / "learning_rate=0.2.log").exists()
    shutil.rmtree(folder / "s")
    assert main(["--figure=eval/loss", *words]) == 0
    assert "2 of 2" in capsys.readouterr().out


def test_exit_code_is_that_of_the_first_point_and_not_of_the_first_to_fail(folder, monkeypatch):
    ends = """
        import os, sys, time
        if sys.argv[1] == "second":
            open("pid", "w").write(str(os.getpid()))
            os.rename("pid", "second")
            sys.exit(4)
        while not os.path.exists("second") or os.path.exists(f"/proc/{open('second').read()}"):  # till it is seen
            time.sleep(0.01)
        sys.exit(3)
    """

    def job(self, point):
        which = "first" if point is self.points[0] else "second"
        return Job(point.name, [sys.executable, "-S", "-c", dedent(ends), which], folder / f"{point.name}.log")

    monkeypatch.setattr("trainers.sweep.__main__._check", lambda *_: 0)
    monkeypatch.setattr(Sweep, "job", job)
    assert main([OVERS[0], "--at_once=2", "--", LINEAR, "--workdir=s"]) == 3


def test_binding_that_no_configurable_takes_is_refused_before_any_run(folder, capsys, monkeypatch):
    monkeypatch.setattr("trainers.sweep.__main__.subprocess.run", check_in_fork(folder))
    assert main(["--over=sgd.learning_rat = [0.1, 0.2]", "--", LINEAR]) == 2
    error = capsys.readouterr().err
    assert "Did you mean `learning_rate`?" in error
    assert error.count("\n") == 1
    assert not (folder / "runs").exists()


def test_killed_check_is_reported_as_killed(folder, capsys, monkeypatch):
    killed = folder / "killed"
    killed.write_text("#!/bin/sh\nkill -KILL $$\n")
    killed.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(killed))
    assert main([*OVERS, "--", LINEAR]) == 6
    assert capsys.readouterr().err == (
        "error: SIGKILL killed the check of the configurations. Nothing was run; try again.\n"
    )


def test_flags_behind_a_second_pair_of_dashes_are_those_of_a_run_and_before_it_of_its_cluster(folder, capsys):
    sweep = parse([OVERS[1], "--", "--workers=2", "--max_restarts=1", "--", LINEAR, "--workdir=s"]).sweep
    _, _, module, *words = sweep.job(sweep.points[1]).command
    assert module == "trainers.launch"
    assert words[:3] == ["--workers=2", "--max_restarts=1", "--"]
    assert sorted(words[3:]) == sorted([LINEAR, "--gin_param=Experiment.seed = 1", "--workdir=s/seed=1"])
    assert main([OVERS[1], "--", "--worker=2", "--", LINEAR]) == 2
    assert "there is no flag `--worker=2`. Did you mean `--workers`?" in capsys.readouterr().err
    assert main([OVERS[1], "--", "--workers=2", LINEAR]) == 2
    assert "there is no flag `--workers=2`." in capsys.readouterr().err


def test_second_sweep_of_one_folder_is_refused_and_the_first_continues(folder, capsys):
    write_point(folder / "s", 0.1, 0, 0.5)
    words = [*OVERS, "--", LINEAR, "--workdir=s"]
    with parse(words).sweep.claimed():
        for _ in range(2):
            with pytest.raises(ConfigurationError, match="another sweep is at work in `s`: wait for it, or give"):
                parse(words).sweep.claimed().__enter__()
    with parse(words).sweep.claimed():
        pass
    assert main(["--over=sgd.learning_rate = [0.1]", "--over=seed=[0]", "--", LINEAR, "--workdir=s"]) == 0
    assert len(find_runs(["s"])) == 1  # the sweep's lock doesn't make its folder a run


def test_folder_that_can_not_be_made_is_refused_by_name(folder):
    (folder / "file").touch()
    with pytest.raises(ConfigurationError, match=r"the folder `file/s` can't be written: Not a directory"):
        parse([*OVERS, "--", LINEAR, "--workdir=file/s"]).sweep.claimed().__enter__()
