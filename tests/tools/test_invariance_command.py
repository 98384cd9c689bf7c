"""Tests of `python -m tools.invariance`: it finds differences, lists configurations, refuses others."""

import contextlib

import pytest
import tensorflow as tf

from core.distribution import Exchange
from core.errors import ConfigurationError, DataError
from core.task import Loss
from core.testing import assemble
from tests.commands import CONFIGS
from tools.invariance import __main__ as command
from tools.invariance import campaign, subjects
from tools.invariance.campaign import Row, measure
from tools.invariance.rounding import Reference
from tools.invariance.subjects import Subject, configured
from tools.invariance.toys import Ragged, toy_batch


class SharedNoise(Ragged):
    def loss(self, batch, rng):
        noise = rng.normal(batch["x"].shape)
        return Loss(tf.square(self.out(self.hidden(batch["x"] + noise))[..., 0] - batch["y"]), weight=batch["weight"])


@pytest.fixture(autouse=True)
def no_meshes(monkeypatch):
    """A test's process has devices for four replicas only."""
    monkeypatch.setattr(command, "MESHES", [])


def as_subject(task):
    return Subject("wrong", lambda strategy: assemble(task, strategy), toy_batch(16))


@pytest.mark.long
def test_replicas_that_differ_and_reduce_twice_are_found(monkeypatch):
    once, lines = Exchange.sum, []

    def twice(self, values, **given):
        return once(self, once(self, tf.nest.map_structure(lambda x: x / self.replicas, values), **given), **given)

    monkeypatch.setattr(Exchange, "sum", twice)
    row = measure(as_subject(SharedNoise), [(2, 1)], steps=2, tries=1, report=lines.append)
    reductions, variables, figures = row.problems
    assert reductions == "`net` reduces gradients 2 times on 2 x 1, not 1"
    assert variables.startswith("variables differ by")
    assert variables.endswith(", 2 x 1), over 1e-05")
    assert figures.startswith("figures differ by")
    assert row.in_a_row == 2
    assert [line.split(": ")[1] for line in lines] == ["2 x 1"]


def test_refusal_on_a_mesh_is_a_problem_unless_it_is_known(monkeypatch):
    def refuse(*_, **__):
        raise ConfigurationError("`tf.TensorArray` can't be")

    monkeypatch.setattr(campaign, "steady_run", lambda *_, **__: Reference(0, [], 1))
    monkeypatch.setattr(campaign, "Run", refuse)
    row = measure(as_subject(Ragged), [], [(2, 1)], steps=1)
    assert (row.meshes, row.refused) == ([], ["2x1"])
    assert row.problems == ["is refused on a mesh of 2x1: `tf.TensorArray` can't be"]
    monkeypatch.setitem(subjects.REFUSED_ON_MESHES, "wrong", "")
    assert measure(as_subject(Ragged), [], [(2, 1)], steps=1).problems == []


@pytest.mark.long
def test_difference_on_a_mesh_is_found(monkeypatch):
    monkeypatch.setattr("core.parallel.mesh.program.refuse_unsafe", lambda function, parts: None)

    class Noisy(Ragged):
        def loss(self, batch, rng):
            noise = tf.random.stateless_normal(batch["x"].shape, [1, 2])
            return super().loss({**batch, "x": batch["x"] + noise}, rng)

    row = measure(as_subject(Noisy), [], [(2, 1)], steps=2, tries=1)
    assert row.meshes == ["2x1"]
    assert [problem.partition(" by ")[0] for problem in row.problems] == ["variables differ", "figures differ"]
    assert "mesh 2x1" in row.problems[0]


class Kinked(Ragged):
    """Its gradient flips where only rounding is left."""

    def loss(self, batch, rng):
        nothing = tf.reduce_sum(self.hidden.w, keepdims=True) - tf.stop_gradient(tf.reduce_sum(self.hidden.w))
        x = self.out(tf.tanh(self.hidden(batch["x"])))[..., 0]
        kink = tf.sign(tf.cos(tf.stop_gradient(tf.reduce_sum(self.hidden.w)) * 1e8))  # decided by the last bit
        return Loss(tf.square(x - batch["y"]) + kink * nothing[0, 0], weight=batch["weight"])


@pytest.mark.long
def test_rounding_that_is_magnified_is_compared_step_by_step():
    row = measure(as_subject(Kinked), [(2, 1)], steps=4, tries=1)
    assert row.in_a_row < 4
    assert row.problems == []


def test_command_prints_a_table_and_fails_if_anything_differs(capsys, monkeypatch):
    rows = {"digits_linear": [], "digits_mlp": ["variables differ by 1e-1"]}
    monkeypatch.setattr(command, "measure", lambda made, **_: Row(made.name, 2, problems=rows[made.name]))
    assert command.main(["--configs", "digits_linear"]) == 0
    assert "1 of 1 are the same in all combinations" in capsys.readouterr().out
    assert command.main(["--configs", *rows]) == 1
    printed = capsys.readouterr().out
    assert "digits_mlp: variables differ by" in printed
    assert "digits_mlp: with MlpClassifier.dropout = 0.2" in printed
    assert "1 of 2 are the same in all combinations" in printed


def test_command_lists_every_configuration_and_refuses_others(capsys):
    for arguments, says in [(["--configs", "digits_lin"], "Did you mean `digits_linear`"), (["--steps", "0"], "is 0")]:
        with pytest.raises(SystemExit):
            command.main(arguments)
        assert says in capsys.readouterr().err
    with contextlib.suppress(SystemExit):
        command.main(["--help"])
    printed = capsys.readouterr().out
    assert all(path.stem in printed for path in CONFIGS.glob("*.gin"))


def test_configuration_that_cannot_be_built_raises(capsys, monkeypatch):
    monkeypatch.setattr(subjects, "STAND_INS", {})
    with pytest.raises(DataError, match="MNIST's file"):
        command.main(["--configs", "mnist_linear"])
    assert "mnist_linear: being built" in capsys.readouterr().out


def test_dropout_is_turned_on_wherever_there_can_be_some(tmp_path):
    assert "MlpClassifier.dropout = 0.2" in configured(CONFIGS / "digits_mlp.gin", tmp_path).changes
    assert not configured(CONFIGS / "digits_linear.gin", tmp_path).changes
    assert not configured(CONFIGS / "digits_convnet.gin", tmp_path).changes  # it has some


def test_epsilon_is_raised_in_every_scope_of_games_alone(tmp_path):
    changes = configured(CONFIGS / "digits_gan.gin", tmp_path).changes
    assert {"g/adam.epsilon = 0.001", "d/adam.epsilon = 0.001"} <= {*changes}
    assert not any("epsilon" in change for change in configured(CONFIGS / "digits_mlp.gin", tmp_path).changes)
