"""`examples/essence.py` trains as the engine does: bit for bit on one device, within rounding on two replicas.

TensorFlow's graph optimizer is off, because it reorders additions by the surrounding graph.
"""

import dataclasses
import functools

import numpy as np
import pytest
import tensorflow as tf

from core.data import ArraySource, PerReplica, train_chunks
from core.engine import ALL_WELL, Progress, TrainStep, assemble, make_chunk
from core.losses.adversarial import non_saturating
from core.optimizers import adam, adamw, chain, clip_by_global_norm, ema, sgd
from core.random import Rng
from core.task import ONE_DEVICE, Loss, Statistics
from core.task.loss import GRADIENT_NORM, means
from core.testing import on_virtual_cpus
from examples.essence import Essence
from models.classifiers import MlpClassifier
from models.gan import Gan, mlp_networks

STEPS, SETTINGS = 7, {"global_batch_size": 16, "microbatches": 2, "chunk_steps": 3, "seed": 5}


class Classifier(MlpClassifier):
    """Draws noise for each row, and weights rows differently."""

    def __init__(self):
        rule = chain(clip_by_global_norm(1.0), adamw(1e-2), ema(0.9))
        super().__init__(rng=Rng.from_seed(1), sizes=[6, 8, 3], optimizer=rule)

    def loss(self, batch, rng):
        noise = rng.fold("noise").rows.normal(batch["image"].shape[0], 6)
        return super().loss({**batch, "image": batch["image"] + 0.1 * noise}, rng)


class Weighted(Classifier):
    def loss(self, batch, rng):
        loss = super().loss(batch, rng)
        return Loss(loss.per_example, weight=tf.cast(batch["label"], tf.float32), metrics=loss.metrics)


class SmallGan(Gan):
    """The generator learns in every second step, through fakes that the discriminator has seen."""

    rule, on_one_device = adam(1e-2), ()

    def __init__(self):
        rules = {f"{name}_optimizer": self.rule for name in "gd"}
        sizes = {"networks": mlp_networks, "image_shape": [2, 3, 1], "latent_size": 4}
        super().__init__(rng=Rng.from_seed(2), game=non_saturating(), r1=0.1, d_steps=2, **sizes, **rules)

    def phases(self):
        alone = {"placement": ONE_DEVICE}
        return [dataclasses.replace(p, **alone) if p.name in self.on_one_device else p for p in super().phases()]


class PlacedGan(SmallGan):
    """Fakes and the discriminator's gradients are made on one device. SGD doesn't amplify rounding as Adam does."""

    rule = sgd(0.1)
    on_one_device = ("sample", "d")


def source(task):
    random = np.random.RandomState(0)
    shape = [6] if issubclass(task, MlpClassifier) else [2, 3, 1]
    image = random.uniform(size=[40, *shape]).astype("float32")
    return ArraySource({"image": image, "label": random.randint(0, 3, 40).astype("int32")}, name="some")


def by_the_engine(task, strategy):
    """Returns variables and metrics of a training with the engine."""
    replicas, data = strategy.num_replicas_in_sync, source(task)
    chunks = PerReplica(lambda i: train_chunks(data, **SETTINGS, replicas=replicas, replica=i), strategy)
    rows = SETTINGS["global_batch_size"] // SETTINGS["microbatches"] // replicas
    one = train_chunks(data, **SETTINGS).element_spec
    specs = {key: tf.TensorSpec([SETTINGS["microbatches"], rows, *x.shape[3:]], x.dtype) for key, x in one.items()}
    assembly = assemble(task, strategy)
    step = TrainStep(assembly, specs, seed=SETTINGS["seed"])
    progress = Progress({name: spec.sums_of_update for name, spec in step.specs.items()}, strategy=strategy)
    chunk, taken = make_chunk(step, chunks.element_spec, progress), 0
    for stacked in chunks:
        if taken == STEPS:
            break
        end = min(taken + SETTINGS["chunk_steps"], STEPS)
        chunk(stacked, tf.constant([taken, taken, end], tf.int64))
        taken = end
    assert int(progress.bad_step) == ALL_WELL
    figures = {name: means(sums) for name, sums in progress.take_sums().items()}
    return {path: v.numpy() for path, v in assembly.variables.items()}, figures


def by_the_essence(task, strategy, *, stops=(), kept=None):
    """Returns the same from the example's file, which is rebuilt from its checkpoint at each of `stops`."""
    for until in (*stops, STEPS):
        trainer = Essence(task, source(task), strategy, **SETTINGS)
        if kept:
            trainer.restore(kept)
        figures = trainer.train(until)
        if kept:
            trainer.save(kept)
    return {path: v.numpy() for path, v in trainer.variables().items()}, figures


@functools.cache
def whole_run(task):
    """Returns the result of `by_the_essence` on one device, where graphs run as traced."""
    return by_the_essence(task, on_virtual_cpus(1))


@pytest.fixture
def as_written():
    """Makes graphs run as traced."""
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    yield
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": False})


@pytest.mark.usefixtures("as_written")
@pytest.mark.parametrize("task", [Weighted, *(pytest.param(x, marks=pytest.mark.long) for x in (Classifier, SmallGan))])
def test_essence_has_the_engine_s_bits_on_one_device(task):
    expected, figures = by_the_engine(task, on_virtual_cpus(1))
    found, means_found = whole_run(task)
    assert found.keys() == expected.keys()
    for path, value in expected.items():
        np.testing.assert_array_equal(found[path], value, err_msg=path)
    for phase, mean in figures.items():
        mean.pop(GRADIENT_NORM)
        assert means_found[phase] == pytest.approx(mean, rel=1e-6), phase


@pytest.mark.parametrize("task", [Weighted, pytest.param(PlacedGan, marks=pytest.mark.long)])
def test_essence_has_the_engine_s_numbers_on_two_replicas(task):
    expected, figures = by_the_engine(task, on_virtual_cpus(2))
    found, means_found = by_the_essence(task, on_virtual_cpus(2))
    for path, value in expected.items():
        np.testing.assert_allclose(found[path], value, rtol=1e-4, atol=1e-6, err_msg=path)
    for phase, mean in figures.items():
        mean.pop(GRADIENT_NORM)
        assert means_found[phase] == pytest.approx(mean, rel=1e-5), phase


@pytest.mark.long
@pytest.mark.usefixtures("as_written")
def test_essence_resumes_amid_a_chunk_to_the_same_bits(tmp_path):
    expected, _ = whole_run(Weighted)
    found, _ = by_the_essence(Weighted, on_virtual_cpus(1), stops=[5], kept=tmp_path / "run.npz")
    for path, value in expected.items():
        np.testing.assert_array_equal(found[path], value, err_msg=path)


@pytest.mark.long
def test_essence_stops_before_a_step_that_is_not_finite():
    class Breaks(Classifier):
        def loss(self, batch, rng):
            loss = super().loss(batch, rng)
            bad = tf.where(rng.step == 4, tf.constant(np.nan), 0.0)
            return Loss(loss.per_example + bad, metrics=loss.metrics)

    trainer = Essence(Breaks, source(Breaks), on_virtual_cpus(1), **SETTINGS)
    with pytest.raises(FloatingPointError, match="step 4 "):
        trainer.train(STEPS)
    before = Essence(Breaks, source(Breaks), on_virtual_cpus(1), **SETTINGS)
    before.train(4)
    for path, value in before.variables().items():
        np.testing.assert_array_equal(trainer.variables()[path].numpy(), value.numpy(), err_msg=path)


@pytest.mark.parametrize("change", [{"mixes_rows": True}, {"microbatches": 1}])
def test_essence_refuses_a_phase_that_needs_the_engine(change):
    class Other(Classifier):
        def phases(self):
            return [dataclasses.replace(phase, **change) for phase in super().phases()]

    with pytest.raises(NotImplementedError, match="phase `net`"):
        Essence(Other, source(Other), on_virtual_cpus(1), **SETTINGS)


def test_essence_refuses_statistics():
    class Other(Classifier):
        def loss(self, batch, rng):
            loss, statistics = super().loss(batch, rng), Statistics()
            return loss._replace(statistics=statistics)

    with pytest.raises(NotImplementedError, match="phase `net` returns statistics"):
        Essence(Other, source(Other), on_virtual_cpus(1), **SETTINGS).train(1)
