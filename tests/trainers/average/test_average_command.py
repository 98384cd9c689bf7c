"""`python -m trainers.average`: its averages, the run that it writes, and its refusals."""

import json
import re

import numpy as np
import pytest

import trainers
from core import checkpoint
from core.module import named_variables
from core.optimizers.power_profile import combination
from tests.commands import CONFIGS, one_paragraph, passed
from trainers.average.__main__ import main
from trainers.evaluation.averaged_weights import averaged_task

STEPS = (10, 20, 30, 40)
GIN = f"""
include "{CONFIGS / "digits_linear.gin"}"
LinearClassifier.optimizer = @chain()
chain.transforms = [@sgd(), %averages]
Trainer.steps = 40
Trainer.checkpoint_every = 10
Trainer.keep_every = 10
"""


def train(folder, name, *averages):
    """Trains 40 steps with these `averages` in the optimizer's chain."""
    lines = [f"e{i}/ema.profile = 'power'\ne{i}/ema.std = {std}" for i, std in enumerate(averages)]
    listed = ", ".join(f"@e{i}/ema()" for i in range(len(averages)))
    text = GIN.replace("[@sgd(), %averages]", f"[@sgd(), {listed}]" if averages else "[@sgd()]")
    (folder / f"{name}.gin").write_text("\n".join([text, *lines]))
    passed(f"--gin_file={name}.gin", f"--workdir={name}", cwd=folder)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("average")
    train(path, "plain")
    train(path, "power", 0.05, 0.1)
    return path


@pytest.fixture
def here(folder, monkeypatch):
    monkeypatch.chdir(folder)
    return folder


def weights(run, step=None):
    return {path: v.numpy() for path, v in named_variables(trainers.load(run, step).task).items()}


@pytest.mark.long
def test_last_checkpoints_are_averaged_for_evaluation_export_and_python(here, capsys):
    assert main(["plain", "--last=3", "--to=soup"]) == 0
    assert "mean of 3 of 3 checkpoints: plain, step 20; plain, step 30; plain, step 40" in capsys.readouterr().out
    found, kept = weights("soup"), [weights("plain", step) for step in STEPS[1:]]
    for path, value in found.items():
        np.testing.assert_allclose(value, np.mean([each[path] for each in kept], axis=0), rtol=1e-6)
    run = trainers.load("soup")
    assert run.step == 40
    assert run.manifest.extra["average_of"]["checkpoints"][-1] == "plain, step 40"
    done = passed("--gin_file=plain.gin", "--workdir=soup", "--mode=evaluate", cwd=here)
    assert f"accuracy {run.evaluate()['accuracy']:.4f}" in re.sub(r"\s+", " ", done.stdout)
    passed("--gin_file=plain.gin", "--workdir=soup", "--mode=export", cwd=here)  # compares it with the live model


def test_power_averages_of_one_run_give_another_width(here, capsys):
    assert main(["power", "--std=0.08", "--to=wide"]) == 0
    assert "width 0.08 from 8 snapshots of width 0.05, 0.1 after 10 to 40 updates" in capsys.readouterr().out
    rows = []
    for step in STEPS:
        slots = trainers.load("power", step).experiment.assembly.optimizers["net"].slots
        for rule, std in (("ema", 0.05), ("ema_2", 0.1)):
            rows.append((step, std, {path: v.numpy() for path, v in slots[f"{rule}/average"].items()}))
    shares, _ = combination([x[0] for x in rows], [x[1] for x in rows], time=40.0, std=0.08)
    run = trainers.load("wide")
    optimizer = run.experiment.assembly.optimizers["net"]
    for path, variable in optimizer.parameters.items():
        expected = sum(share * x[2][path] for share, x in zip(shares, rows, strict=True))
        np.testing.assert_allclose(variable, expected, rtol=1e-4, atol=1e-6)
    twin = averaged_task(run.experiment)
    twin.update()
    for path, variable in named_variables(twin.task).items():
        np.testing.assert_array_equal(variable, named_variables(run.experiment.task)[path])


@pytest.mark.long
def test_greedy_soup_of_two_runs_is_at_least_as_good_as_each(here, capsys):
    train(here, "other")
    assert main(["plain", "other", "--greedy=max accuracy"]) == 0
    assert re.search(r"accuracy 0\.\d+\nmean of \d of 8 checkpoints", capsys.readouterr().out)
    best = max(trainers.load("plain", step).evaluate()["accuracy"] for step in STEPS)
    run = trainers.load("plain-average")
    record = run.manifest.extra["average_of"]["metric"]
    assert record == {"by": "max accuracy", "value": run.evaluate()["accuracy"]}
    assert record["value"] >= best


def test_average_can_be_trained_on(here):
    assert main(["power", "--last=2", "--to=further"]) == 0
    passed("--gin_file=power.gin", "--gin_param=Trainer.steps=50", "--workdir=further", cwd=here)
    assert json.loads((here / "further" / "result.json").read_text())["step"] == 50


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        ([], 2, ["the folder of a run is missing"]),
        (["plain", "--last=0"], 2, ["`--last` is 0"]),
        (["plain", "--last=9"], 2, ["`--last` is 9, but `plain` keeps 4 checkpoints"]),
        (["plain", "--greedy=accuracy"], 2, ["`--greedy` is 'accuracy'", "max accuracy"]),
        (["plain", "--greedy=max acuracy"], 2, ["Did you mean `accuracy`?"]),
        (["plain", "--std=0.1"], 2, ["the run keeps none", "ema(profile='power'"]),
        (["power", "--std=0.4"], 2, ["`std` is 0.4"]),
        (["plain", "power", "--std=0.1"], 2, ["leave out `--greedy` and the other runs"]),
        (["plain", "--to=plain"], 2, ["`plain` exists already"]),
        (["missing"], 5, ["there is no checkpoint in `missing/checkpoints`"]),
    ],
)
def test_mistakes_are_refused_in_one_paragraph(here, capsys, words, code, says):
    assert main([*words, *([] if any("--to" in word for word in words) else ["--to=refused"])]) == code
    one_paragraph(capsys.readouterr().err, *says)
    assert not (here / "refused").exists()


def test_written_checkpoint_is_whole(here):
    if not (here / "whole").exists():
        assert main(["plain", "--to=whole"]) == 0
    (path,) = (here / "whole" / "checkpoints").glob("step-*")
    assert set(checkpoint.verified(path).variables) == set(trainers.load("plain").manifest.variables)
