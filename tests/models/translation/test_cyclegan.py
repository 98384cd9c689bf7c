"""CycleGAN: networks of the paper's sizes, losses by its formulas, the same numbers for any split of a batch."""

import contextlib
import functools
import inspect
import itertools

import numpy as np
import pytest
import tensorflow as tf

from core.data import ArraySource
from core.distribution import shapes_only
from core.errors import ConfigurationError, DataError
from core.module import named_variables
from core.optimizers import sgd
from core.random import Rng
from core.task import Update
from core.testing import assert_step_function, assert_updates_only
from models import CycleGan, MlpClassifier
from models.translation import PatchGan, ResNetGenerator
from models.translation.task import checked_translation
from trainers.experiment import Experiment

ROWS, SIZE, POOL = 4, 8, 3
RANDOM = np.random.RandomState(0)
DATA = {name: np.tanh(RANDOM.randn(ROWS, SIZE, SIZE, 3)).astype("float32") for name in ("a", "b")}
BATCH = {name: tf.constant(x) for name, x in DATA.items()}
RNG = Rng.from_seed(1)._replace(num_rows=ROWS)


def made(**settings):
    """Returns a factory of tiny networks, as an experiment calls it."""
    defaults = {
        "image_shape": [SIZE, SIZE, 3],
        "width": 2,
        "blocks": 1,
        "discriminator_channels": [3, 4],
        "pool_size": POOL,
        "paired_evaluation": True,
        # Steps much smaller than the weights: before a norm, small weights turn a large step into chaos.
        "g_optimizer": sgd(1e-4),
        "d_optimizer": sgd(1e-4),
    }
    return functools.partial(CycleGan, **{**defaults, **settings})


@functools.cache
def task():
    return made()(rng=Rng.from_seed(0))


# --- the networks ----------------------------------------------------------------------------------------------------


def shaped(make, **sizes):
    """Makes a network of colour images without values, because drawing millions takes long."""
    with shapes_only.shapes_only():
        return shapes_only.made(lambda: make(3, **sizes, rng=Rng.from_seed(0)), contextlib.nullcontext)


def count(module):
    return sum(v.shape.num_elements() for v in module.trainable_variables)


@pytest.mark.parametrize(("blocks", "millions"), [(6, 7.8), (9, 11.4)])
def test_generators_have_the_size_of_the_papers(blocks, millions):
    def normed(window, inputs, outputs):  # no bias, but a scale and an offset
        return window**2 * inputs * outputs + 2 * outputs

    expected = normed(7, 3, 64) + normed(3, 64, 128) + normed(3, 128, 256) + blocks * 2 * normed(3, 256, 256)
    expected += normed(3, 256, 128) + normed(3, 128, 64) + 7**2 * 64 * 3 + 3
    g = shaped(ResNetGenerator, width=64, blocks=blocks)
    assert count(g) == expected
    assert round(expected / 1e6, 1) == millions


def test_discriminator_has_the_size_of_the_papers():
    sizes = (3, 64, 128, 256, 512, 1)
    # A bias; in layers that are neither first nor last a scale and an offset in its place.
    each = [4**2 * i * o + o * (2 if 0 < n < 4 else 1) for n, (i, o) in enumerate(itertools.pairwise(sizes))]
    assert count(shaped(PatchGan, channels=sizes[1:-1])) == sum(each)
    assert round(sum(each) / 1e6, 1) == 2.8
    narrow = PatchGan(3, channels=(2, 3, 4, 5), rng=Rng.from_seed(0))
    assert narrow(tf.zeros([1, 256, 256, 3])).shape == [1, 30, 30, 1]


@pytest.mark.parametrize(("channels", "field"), [((2, 3, 4, 5), 70), ((2, 3, 4), 34), ((2, 3), 16)])
def test_patch_logit_sees_its_receptive_field(channels, field):
    d = PatchGan(1, channels=channels, rng=Rng.from_seed(0))
    assert d.receptive_field == field
    image = tf.random.stateless_normal([1, 96, 96, 1], [0, 0])
    with tf.GradientTape() as tape:
        tape.watch(image)
        x = image
        for layer in d.net.layers:
            # Norms read the whole image, by design; the convolutions define the patch.
            x = x if type(layer).__name__ == "InstanceNorm" else layer(x)
        middle = x.shape[1] // 2
        logit = x[0, middle, middle, 0]
    seen = np.argwhere(tape.gradient(logit, image).numpy()[0, :, :, 0])
    np.testing.assert_array_equal(seen.max(0) - seen.min(0) + 1, [field, field])


def test_initial_weights_spread_as_in_the_paper():
    """All kernels are normal with a standard deviation of 0.02, within 4.5 standard errors for so many numbers."""
    kernels = {path: v.numpy() for path, v in task().parameters().items() if path.endswith("/w")}
    assert {path.split("/")[0] for path in kernels} == {"g_ab", "g_ba", "d_a", "d_b"}
    for path, kernel in kernels.items():
        assert kernel.size >= 32, path
        assert abs(np.std(kernel) / 0.02 - 1.0) < 4.5 / np.sqrt(2 * kernel.size), path
        assert abs(np.mean(kernel) / 0.02) < 4.5 / np.sqrt(kernel.size), path


# --- the losses ------------------------------------------------------------------------------------------------------


def mean(x):
    return np.mean(np.asarray(x, "float64"), axis=(1, 2, 3))


@pytest.mark.parametrize(("cycle_weight", "identity_weight"), [(10.0, 5.0), (3.0, 0.0)])
def test_generator_loss_is_that_of_the_paper(cycle_weight, identity_weight):
    t = made(cycle_weight=cycle_weight, identity_weight=identity_weight)(rng=Rng.from_seed(3))
    a, b = BATCH["a"], BATCH["b"]
    fake_a, fake_b = t.g_ba(b), t.g_ab(a)
    gan = mean((t.d_b(fake_b) - 1.0) ** 2) + mean((t.d_a(fake_a) - 1.0) ** 2)
    cycle = mean(abs(t.g_ba(fake_b) - a)) + mean(abs(t.g_ab(fake_a) - b))
    same = mean(abs(t.g_ab(b) - b)) + mean(abs(t.g_ba(a) - a))
    loss = t.generator_loss(BATCH, RNG)
    np.testing.assert_allclose(loss.per_example, gan + cycle_weight * cycle + identity_weight * same, rtol=1e-5)
    assert ("identity" in loss.metrics) == bool(identity_weight)
    np.testing.assert_allclose(loss.outputs["fake_a"], fake_a, atol=1e-6)
    np.testing.assert_allclose(loss.outputs["fake_b"], fake_b, atol=1e-6)


def test_discriminator_losses_are_those_of_the_paper():
    t, shown = task(), {"shown_a": BATCH["b"][::-1], "shown_b": BATCH["a"][::-1]}
    for d, domain in ((t.d_a, "a"), (t.d_b, "b")):
        real, fake = BATCH[domain], shown[f"shown_{domain}"]
        found = t.discriminator_loss(d, domain, {**BATCH, **shown}, RNG)
        np.testing.assert_allclose(found.per_example, (mean((d(real) - 1) ** 2) + mean(d(fake) ** 2)) / 2, rtol=1e-5)
        np.testing.assert_allclose(found.metrics["real_accuracy"], mean(d(real) > 0.5), atol=1e-6)
        np.testing.assert_allclose(found.metrics["fake_accuracy"], mean(d(fake) < 0.5), atol=1e-6)


def losses(t):
    """Returns the step function of each update."""
    return {phase.name: phase.loss for phase in t.phases() if isinstance(phase, Update)}


@pytest.mark.long
def test_step_functions_treat_rows_by_themselves():
    few = {name: x[:2] for name, x in BATCH.items()}
    assert_step_function(task().generator_loss, few)
    assert_step_function(losses(task())["d_a"], {**few, "shown_a": few["b"]})


def test_evaluation_measures_errors_of_hidden_pairs():
    t = task()
    found = t.evaluate(BATCH).metrics
    a, b = BATCH["a"], BATCH["b"]
    error, nothing = mean(abs(t.translate(a) - b)), mean(abs(a - b))
    np.testing.assert_allclose(found["error_ab"], error, rtol=1e-5)
    np.testing.assert_allclose(found["error_ba"], mean(abs(t.g_ba(b) - a)), rtol=1e-5)
    np.testing.assert_allclose(found["identity_error"], nothing, rtol=1e-5)
    # The ratio of the means, not the mean of each example's ratio.
    np.testing.assert_allclose(found["ratio_ab"].result(), error.mean() / nothing.mean(), rtol=1e-5)
    assert abs(error.mean() / nothing.mean() - (error / nothing).mean()) > 1e-5


def test_evaluation_without_pairs_measures_the_way_there_and_back():
    t = made(paired_evaluation=False)(rng=Rng.from_seed(0))
    found = t.evaluate(BATCH)
    a, b = BATCH["a"], BATCH["b"]
    np.testing.assert_allclose(
        found.per_example, mean(abs(t.g_ba(t.g_ab(a)) - a)) + mean(abs(t.g_ab(t.g_ba(b)) - b)), rtol=1e-5
    )
    assert not found.metrics


# --- the step --------------------------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize("phase", ["generators", "d_b"])
def test_update_leaves_the_other_networks_bit_for_bit(phase):
    t = made()(rng=Rng.from_seed(0))
    assert_updates_only(t, phase, [t.g_ab, t.g_ba] if phase == "generators" else getattr(t, phase), BATCH)


def test_generators_make_fakes_once_a_step():
    t = made()(rng=Rng.from_seed(0))
    phases, passes = t.phases(), {"g_ab": 0, "g_ba": 0}

    def counted(name, g):
        def call(images):
            passes[name] += 1
            return g(images)

        return call

    t.g_ab, t.g_ba = counted("g_ab", t.g_ab), counted("g_ba", t.g_ba)
    values = dict(BATCH)
    t.generator_loss(values, RNG)
    fakes = {"fake_a": BATCH["a"], "fake_b": BATCH["b"]}
    for phase in phases[1:]:
        if isinstance(phase, Update):
            phase.loss(values, RNG)
        else:
            values |= phase.fn(fakes, RNG)[0]
    assert passes == {"g_ab": 2, "g_ba": 2}  # there (with what should stay as it is) and back


LARGE = {name: np.tanh(RANDOM.randn(ROWS, SIZE + 2, SIZE + 2, 3)).astype("float32") for name in ("a", "b")}


def test_only_a_translation_translates():
    assert checked_translation(task()) is task()
    with pytest.raises(ConfigurationError, match=r"`MlpClassifier` translates no images: it needs `translate"):
        checked_translation(MlpClassifier(rng=Rng.from_seed(0), sizes=[4, 2], optimizer=sgd(0.1)))


def test_newest_fakes_are_shown_without_a_pool():
    t = made(pool_size=0)(rng=Rng.from_seed(0))
    fakes = {"fake_a": BATCH["b"], "fake_b": BATCH["a"]}
    pools = [phase for phase in t.phases() if phase.name.startswith("pool")]
    shown = {name: x for phase in pools for name, x in phase.fn(fakes, RNG).items()}
    assert shown == {"shown_a": BATCH["b"], "shown_b": BATCH["a"]}
    assert not any("pool" in path for path in named_variables(t))
    assert not t.one_device


def test_pools_take_no_room_on_the_other_replicas():
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"], tf.distribute.ReductionToOneDevice())
    experiment = Experiment(task=made(), train_source=ArraySource(DATA, name="lab"), strategy=strategy)
    copies = {path: len(strategy.experimental_local_results(v)) for path, v in named_variables(experiment.task).items()}
    assert {path: n for path, n in copies.items() if n == 1}.keys() == {
        f"pool_{domain}/{name}" for domain in "ab" for name in ("images", "count")
    }
    assert "task/pool_b/images" in experiment.variables  # what a checkpoint holds


def test_images_are_cut_before_anything_looks_at_them():
    t, large = made(crop_and_flip=True)(rng=Rng.from_seed(0)), {name: tf.constant(x) for name, x in LARGE.items()}
    t.check_source(ArraySource(LARGE, name="large"))
    assert t.phases()[0].name == "crop"
    cut = t.cut(large, RNG)
    assert cut["cut_a"].shape == cut["cut_b"].shape == [ROWS, SIZE, SIZE, 3]
    np.testing.assert_allclose(
        t.generator_loss({**large, **cut}, RNG).per_example,
        task().generator_loss({"a": cut["cut_a"], "b": cut["cut_b"]}, RNG).per_example,
        rtol=1e-6,
    )
    middle = {name: x[:, 1:-1, 1:-1] for name, x in large.items()}
    np.testing.assert_allclose(t.evaluate(large).per_example, task().evaluate(middle).per_example, rtol=1e-6)


def test_defaults_are_those_of_the_paper():
    defaults = {name: p.default for name, p in inspect.signature(CycleGan).parameters.items()}
    wanted = {"width": 64, "blocks": 9, "cycle_weight": 10.0, "identity_weight": 5.0, "pool_size": 50}
    assert {name: defaults[name] for name in wanted} == wanted
    assert defaults["discriminator_channels"] == (64, 128, 256, 512)


# --- bad input -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"image_shape": [30, 32, 3]}, "the generators halve it twice: use multiples of 4"),
        ({"image_shape": [32, 32]}, "give height, width and channels"),
        ({"discriminator_channels": [2, 2, 2, 2]}, "too many for images of 8 by 8"),
        ({"pool_size": -1}, "`CycleGan.pool_size` is -1"),
        ({"crop_and_flip": True, "image_shape": [8, 16, 3]}, "crops squares"),
    ],
)
def test_settings_that_contradict_are_refused(settings, says):
    with pytest.raises(ConfigurationError, match=says):
        made(**settings)(rng=Rng.from_seed(0))


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ({"a": DATA["a"]}, "has no feature `b`"),
        ({"a": DATA["a"], "b": DATA["b"][:, :4]}, r"`b` .* has shape \(4, 8, 3\)"),
        ({"a": DATA["a"][..., :1], "b": DATA["b"]}, r"`a` .* has shape \(8, 8, 1\)"),
        ({"a": DATA["a"], "b": DATA["b"].astype("int32")}, "`b` .* is int32"),
    ],
    ids=["missing", "small", "grey", "integers"],
)
def test_sources_that_do_not_fit_are_refused(data, says):
    with pytest.raises(DataError, match=says):
        task().check_source(ArraySource(data, name="odd"))
