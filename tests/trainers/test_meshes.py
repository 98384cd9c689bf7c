"""A run on a mesh is a run: figures, evaluation, checkpoints, hooks, and its end, through the real trainer."""

import numpy as np
import pytest

from core.data import digits
from core.errors import ConfigurationError, NotFiniteError
from core.optimizers import adamw, chain, ema, sgd
from core.testing import on_virtual_cpus, on_virtual_mesh
from models.classifiers.mlp import MlpClassifier
from tests.trainers.trainer_lab import hashes, make, newest, train
from trainers.evaluator import Evaluator

LAYOUTS = [("net/layers/0/?", "...,model"), ("net/layers/1/w", "model,-")]
STRATEGIES = {
    "one device": lambda: None,
    "2 replicas": lambda: on_virtual_cpus(2),
    "2x2": lambda: on_virtual_mesh(2, 2, LAYOUTS),
    "1x2": lambda: on_virtual_mesh(1, 2, LAYOUTS),
}


def averaging_mlp(*, rng):
    return MlpClassifier(rng=rng, sizes=[64, 16, 10], dropout=0.1, optimizer=chain(adamw(3e-3), ema(0.9)))


def trainer_on(name, tmp_path, folder=None, **settings):
    held_out = digits("test")
    settings = {"microbatches": 2, "checkpoint_every": 20, "evaluate_every": 20, **settings}
    return make(
        tmp_path, folder or name, task=averaging_mlp, eval_source=held_out, strategy=STRATEGIES[name](), **settings
    )


@pytest.fixture(scope="module")
def on_one_device(tmp_path_factory):
    trainer = trainer_on("one device", tmp_path_factory.mktemp("one"))
    return trainer, train(trainer)


def assert_same_lines(found, expected):
    assert [line[:2] for line in found] == [line[:2] for line in expected]
    for (step, split, figures), (_, _, others) in zip(found, expected, strict=True):
        assert figures.keys() == others.keys()
        for name, x in others.items():
            assert figures[name] == pytest.approx(x, rel=2e-5, abs=2e-5), (step, split, name)


@pytest.mark.parametrize("name", ["2x2", pytest.param("1x2", marks=pytest.mark.long)])
def test_a_run_has_the_figures_of_one_device(name, tmp_path, on_one_device):
    """In chunks and microbatches, with evaluation by averages over a last batch that is smaller."""
    assert_same_lines(train(trainer_on(name, tmp_path)), on_one_device[1])


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("2x2", "1x2"),
        *(
            pytest.param(*way, marks=pytest.mark.long)
            for way in (("2x2", "one device"), ("2 replicas", "2x2"), ("one device", "1x2"))
        ),
    ],
)
def test_a_checkpoint_goes_on_elsewhere(before, after, tmp_path, on_one_device):
    begun = trainer_on(before, tmp_path, "run", steps=20)
    lines = train(begun)
    saved = hashes(begun)
    going_on = trainer_on(after, tmp_path, "run")
    going_on.state.restore(newest(going_on))
    assert going_on.state.save() is not None
    assert hashes(going_on) == saved  # bit for bit, in the new places
    assert_same_lines([*lines, *train(going_on)], on_one_device[1])


def test_hooks_read_a_copy_of_the_averages_on_the_host(tmp_path):
    trainer = trainer_on("2x2", tmp_path)
    train(trainer)
    trainer.averaged.update()
    image = digits("test").gather(np.arange(3))["image"]
    logits = trainer.averaged.task.net(image)
    assert logits.shape == [3, 10]
    average = trainer.experiment.variables["optimizer/net/ema/average/layers/0/w"].numpy()
    own = trainer.experiment.variables["task/net/layers/0/w"].numpy()
    copied = trainer.averaged.task.net.layers[0].w.numpy()
    assert np.abs(copied - own).max() > 1e-4
    assert np.abs(copied - average).max() < np.abs(copied - own).max()


def test_a_batch_that_rows_of_devices_cannot_share_is_refused(tmp_path):
    with pytest.raises(ConfigurationError, match="global_batch_size` is 6, which 2 microbatches x `mesh"):
        trainer_on("2x2", tmp_path, global_batch_size=6)


def test_what_xla_would_compile_is_refused_and_auto_compiles_nothing(tmp_path):
    for word in ("xla", {"net": "xla"}):
        with pytest.raises(ConfigurationError, match="programs of XLA, which can't be cut for the devices of a mesh"):
            trainer_on("2x2", tmp_path, compile=word)
    assert trainer_on("2x2", tmp_path, compile="auto").train_step.compiled is False


def test_an_evaluation_s_batch_that_they_cannot_share_is_refused(tmp_path):
    experiment = make(tmp_path, strategy=STRATEGIES["2x2"]()).experiment
    with pytest.raises(ConfigurationError, match=r"`Evaluator.global_batch_size` is 101, which `mesh.batch` = 2 can't"):
        Evaluator(experiment, digits("test"), global_batch_size=101)


def test_a_step_that_is_not_finite_ends_the_run(tmp_path):
    def wild(*, rng):
        return MlpClassifier(rng=rng, sizes=[64, 16, 10], optimizer=sgd(1e30))

    trainer = make(tmp_path, task=wild, strategy=STRATEGIES["1x2"]())
    with pytest.raises(NotFiniteError, match=r"step 1 is not finite\. Nothing of it was saved\. Lower"):
        train(trainer)
    assert trainer.step == 1
