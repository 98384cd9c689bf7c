"""`benchmarks.race`: steps to a loss by interpolation, and a short race by the real command that continues."""

import math
import re
import sys

import gin
import pytest

from benchmarks.race import __main__ as race
from benchmarks.race.rules import RULES
from core.testing.plain import optimizers_of
from tests.commands import CHECKOUT, run
from trainers import configurables as configurables  # registers them
from trainers import hooks
from trainers.experiment import Experiment
from trainers.gin_audit.audit import read
from trainers.settings import Settings


@pytest.fixture(autouse=True)
def _clean():
    yield
    gin.clear_config()


@pytest.mark.parametrize(
    ("losses", "length"),
    [
        ([4.0, 3.0, 2.0], 0.8),  # met exactly at a length
        ([4.0, 3.5, 2.5], 0.9),  # half of the way between two
        ([2.5, 2.0, 1.0], 0.6),  # from the first on: no line to extend
        ([4.0, 3.5, 3.2], math.inf),
        ([4.0, math.nan, 2.0], 1.0),  # a failed run has no line either
    ],
)
def test_length_is_read_from_the_line_through_losses(losses, length):
    assert race.reached([0.6, 0.8, 1.0], losses, 3.0) == pytest.approx(length)


def test_rules_have_equal_budgets():
    assert len({len(rule.peaks) for rule in RULES.values()}) == 1


@pytest.mark.long
@pytest.mark.parametrize("work", race.WORKS)
@pytest.mark.parametrize("name", RULES)
def test_bindings_of_a_rule_complete_the_work(work, name):
    params = race.bindings(work, name, peak=0.01, seed=0, steps=40)
    configuration = read([f"benchmarks/race/{race.WORKS[work].file}.gin"], params, search=[CHECKOUT])
    configuration.bind([Experiment, Settings], required=[Experiment, Settings], register=hooks.register)
    (optimizer,) = optimizers_of(Experiment().task).values()
    assert optimizer.transform.name == "chain"


def forked(command, *, cwd, **_):
    """Runs the command of a training in a fork, which imports no TensorFlow."""
    python, *module = command[:3]
    assert (python, module) == (sys.executable, ["-m", "trainers.main"])
    return run(*command[3:], cwd=cwd)


@pytest.mark.long
def test_race_continues_where_it_was(tmp_path, capsys, monkeypatch):
    small = race.WORKS["digits_convnet"]._replace(bindings=["ConvNetClassifier.channels = [4, 8]"])
    monkeypatch.setitem(race.WORKS, "digits_convnet", small)
    monkeypatch.setattr(race, "SEARCH_SEEDS", (0,))  # the search trains what the race needs
    monkeypatch.setattr(race, "SEEDS", (0,))
    monkeypatch.setattr(race, "PARTS", (0.5, 1.0))
    monkeypatch.setattr(race, "TURNS", 2)
    monkeypatch.setattr(race, "PACE_STEPS", 20)
    monkeypatch.setattr(race, "RULES", {name: RULES[name]._replace(peaks=(3e-3,)) for name in ("adamw", "muon")})
    monkeypatch.setattr(race.subprocess, "run", forked)
    flags = [f"--kept={tmp_path}", "--works", "digits_convnet", "--rules", "muon", "--steps=40"]
    race.main(flags)
    first = capsys.readouterr().out
    assert "muon, seed 0, 0.5 of the steps:" in first
    assert re.search(r"turn 2: adamw \d+\.\d ms, muon \d+\.\d ms", first)
    monkeypatch.setattr(race.subprocess, "run", None)  # nothing is trained twice
    monkeypatch.setattr(race, "paces", lambda work, best, kept: dict.fromkeys(best, 1.0))
    race.main(flags)
    losses = [line for line in first.splitlines() if "seed 0," in line]
    assert [line for line in capsys.readouterr().out.splitlines() if "seed 0," in line] == losses
