"""A trainer on a mesh: metrics, evaluation, checkpoints, hooks, and its end."""

import functools

import numpy as np
import pytest

from benchmarks.memory import growth, measured
from core.errors import ConfigurationError, NotFiniteError
from core.optimizers import chain, ema, sgd
from core.testing import on_virtual_mesh
from tests.trainers.trainer_lab import HELD_OUT, Deep, Small, make, newest, train
from trainers.evaluation.evaluator import Evaluator

LAYOUTS = [("net/layers/0/?", "...,model"), ("net/layers/1/w", "model,-")]
STRATEGIES = {"one device": lambda: None, "2x2": lambda: on_virtual_mesh(2, 2, LAYOUTS)}


class Averaging(Deep):
    optimizer = chain(sgd(0.1, momentum=0.9), ema(0.9))


class Wild(Small):
    optimizer = sgd(1e30)


def trainer_on(name, tmp_path, **settings):
    settings = {"microbatches": 2, "checkpoint_every": 20, "evaluate_every": 20, **settings}
    return make(tmp_path, name, task=Averaging, eval_source=HELD_OUT, strategy=STRATEGIES[name](), **settings)


@pytest.fixture(scope="module")
def on(tmp_path_factory):
    """Returns a trained run by its strategy, and its metric lines; each is trained once."""

    def trained(name):
        trainer = trainer_on(name, tmp_path_factory.mktemp("run"))
        return trainer, train(trainer)

    return functools.cache(trained)


def hashes_of(manifest):
    return {path: saved.sha256 for path, saved in manifest.variables.items()}


def assert_same_lines(found, expected):
    assert [line[:2] for line in found] == [line[:2] for line in expected]
    for (step, split, figures), (_, _, others) in zip(found, expected, strict=True):
        assert figures.keys() == others.keys()
        for name, x in others.items():
            assert figures[name] == pytest.approx(x, rel=2e-5, abs=2e-5), (step, split, name)


@pytest.mark.long
def test_run_on_a_mesh_has_the_metrics_of_one_device(on):
    """In chunks and microbatches, with evaluation of averages over a last batch that is smaller."""
    assert_same_lines(on("2x2")[1], on("one device")[1])


@pytest.mark.parametrize(("before", "after"), [("one device", "2x2"), ("2x2", "one device")])
def test_checkpoint_resumes_on_other_devices(before, after, on):
    """They have trained before, so that nothing is traced again."""
    (begun, _), (resumed, _) = on(before), on(after)
    saved = newest(begun, up_to=20)
    resumed.state.restore(saved)
    assert resumed.state.save() is not None
    resumed.settle()
    assert hashes_of(newest(resumed, up_to=20)) == hashes_of(saved)  # in their new places
    chunks = resumed.input.chunks_from(20)
    while resumed.step < 40:
        resumed.take_steps(next(chunks), 10, run=resumed._run_chunk)
    for path, variable in begun.state.variables.items():
        if path.startswith("task/"):
            np.testing.assert_allclose(resumed.state.variables[path].numpy(), variable.numpy(), atol=1e-4, err_msg=path)


def test_hooks_read_a_copy_of_the_averages_on_the_host(on):
    trainer, _ = on("2x2")
    trainer.averaged.update()
    assert trainer.averaged.task.net(HELD_OUT.gather(np.arange(5))["x"]).shape == [5, 1]
    average = trainer.experiment.variables["optimizer/net/ema/average/layers/0/w"].numpy()
    own = trainer.experiment.variables["task/net/layers/0/w"].numpy()
    copied = trainer.averaged.task.net.layers[0].w.numpy()
    assert np.abs(copied - own).max() > 1e-5
    assert np.abs(copied - average).max() < np.abs(copied - own).max()


def test_batch_that_devices_cannot_share_is_refused(tmp_path):
    with pytest.raises(ConfigurationError, match="global_batch_size` is 6, which 2 microbatches x `mesh"):
        trainer_on("2x2", tmp_path, global_batch_size=6)


def test_xla_is_refused_and_auto_compiles_nothing(tmp_path):
    with pytest.raises(ConfigurationError, match="programs of XLA, which can't be cut for the devices of a mesh"):
        trainer_on("2x2", tmp_path, compile={"net": "xla"})
    assert trainer_on("2x2", tmp_path, compile="auto").train_step.compiled is False


def test_evaluation_batch_that_devices_cannot_share_is_refused(tmp_path):
    experiment = make(tmp_path, strategy=on_virtual_mesh(2, 1)).experiment
    with pytest.raises(ConfigurationError, match=r"`Evaluator.global_batch_size` is 101, which `mesh.batch` = 2 can't"):
        Evaluator(experiment, HELD_OUT, global_batch_size=101)


def test_step_that_is_not_finite_ends_the_run(tmp_path):
    trainer = make(tmp_path, task=Wild, strategy=on_virtual_mesh(2, 1))
    with pytest.raises(NotFiniteError, match=r"step 1 is not finite\. Nothing of it was saved\. Lower"):
        train(trainer)
    assert trainer.step == 1


def test_memory_growth_is_the_slope_through_the_marks():
    assert growth([(100, 5_000), (200, 7_000), (300, 9_000)]) == 20.0


@pytest.mark.long
def test_memory_of_a_mesh_grows_little_with_each_chunk():
    """About 0.5 kB a step, in chunks of 20: a leak per step would be larger."""
    assert growth(measured("2x2", 20, 3000)) < 1_500
