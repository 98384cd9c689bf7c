"""A loss that reads the average of the weights, on one device and several, after a resume, and in evaluation."""

import numpy as np
import pytest
import tensorflow as tf

from core.optimizers import averaged, chain, ema, lookahead, schedule_free_adamw, sgd
from core.random import Rng
from core.task import Loss, Statistics
from core.testing.replicas import on_virtual_cpus, on_virtual_mesh
from tests.trainers.test_averaged_statistics import SLOTS, Normalised, trained, values
from tests.trainers.trainer_lab import HELD_OUT, make, newest


class Taught(Normalised):
    """Learns the targets and its average's answers."""

    optimizer = chain(sgd(0.1), ema(0.8))

    def loss(self, batch, rng):
        statistics = Statistics()
        y, taught = self.net(batch["x"], statistics), averaged(self.net)(batch["x"])
        return Loss(tf.square(y - batch["y"]) + tf.square(y - taught), statistics=statistics)

    def evaluate(self, batch):
        return Loss(tf.square(averaged(self.net)(batch["x"]) - batch["y"]))


class EvaluatesItself(Taught):
    def evaluate(self, batch):
        return Normalised.evaluate(self, batch)


SETTINGS = {"steps": 6, "chunk_steps": 3, "log_every": None, "microbatches": 2}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("taught")
    return trained(folder, task=Taught, eval_source=HELD_OUT, checkpoint_every=3, **SETTINGS)


@pytest.fixture(scope="module")
def whole(run):
    return values(run)


@pytest.mark.long
def test_average_changes_what_is_learnt(whole, tmp_path):
    other = values(trained(tmp_path, task=type("Alone", (Normalised,), {"optimizer": Taught.optimizer}), **SETTINGS))
    assert np.abs(whole["task/net/out/w"] - other["task/net/out/w"]).max() > 1e-3


def test_no_gradient_flows_through_an_average():
    task = Taught(rng=Rng.from_seed(0))
    with tf.GradientTape() as tape:
        y = averaged(task.net)(tf.ones([2, 3]))
    assert tape.gradient(y, list(task.net.trainable_variables)) == [None] * 8


def test_evaluation_of_the_average_is_that_of_the_network(run, tmp_path):
    other = make(tmp_path, task=EvaluatesItself, eval_source=HELD_OUT, **SETTINGS)
    other.state.restore(newest(run))
    assert dict(run.evaluations.evaluate()) == dict(other.evaluations.evaluate())


@pytest.mark.long
def test_run_that_resumes_reads_the_same_average_to_the_bit(run, whole):
    run.state.restore(newest(run, up_to=3))
    run.train()
    for path, value in values(run).items():
        np.testing.assert_array_equal(value, whole[path], err_msg=path)


@pytest.mark.long
@pytest.mark.parametrize("how", ["mirrored", "mesh", "xla"])
def test_averages_are_the_same_on_two_devices_and_compiled(how, whole, tmp_path):
    """The averages of the statistics are among the variables."""
    settings = {"compile": True} if how == "xla" else {}
    if how != "xla":
        settings["strategy"] = on_virtual_cpus(2) if how == "mirrored" else on_virtual_mesh(2, 1)
    other = values(trained(tmp_path, task=Taught, **SETTINGS, **settings))
    paths = {path for path in whole if path.startswith("task/")} | SLOTS
    assert paths <= other.keys()
    for path in paths:
        np.testing.assert_allclose(other[path], whole[path], rtol=1e-4, atol=1e-5, err_msg=path)


@pytest.mark.long
@pytest.mark.parametrize(
    "optimizer", [lookahead(sgd(0.1), sync_period=3), schedule_free_adamw(0.01)], ids=lambda rule: rule.name
)
def test_copy_has_the_values_that_evaluation_reads(optimizer, tmp_path):
    run = trained(tmp_path, steps=4, task=type("Other", (Taught,), {"optimizer": optimizer}), chunk_steps=4)
    twin = run.evaluations.averaged
    twin.update()
    x = tf.random.stateless_normal([4, 3], [0, 1])
    net = run.experiment.task.net
    np.testing.assert_allclose(averaged(net)(x), twin.task.net(x), rtol=1e-5, atol=1e-6)
    assert np.abs(averaged(net)(x) - net(x)).max() > 1e-4
