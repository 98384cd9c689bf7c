"""Adversarial losses by the papers' formulas, and penalties of critics whose slopes are known."""

import re
from collections.abc import Callable
from typing import Any

import gin
import numpy as np
import pytest
import tensorflow as tf

from core.losses import adversarial
from core.losses.adversarial import Game, gradient_penalty, r1, r2
from core.random import Rng

Array = np.ndarray


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


# game, its discriminator's loss of (real, fake), its generator's loss of (real, fake); in float64, one value a logit
PAPERS: dict[str, tuple[Game, Callable[[Array, Array], Array], Callable[[Array, Array], Array]]] = {
    "Goodfellow et al., 2014": (
        adversarial.non_saturating(),
        lambda r, f: -np.log(sigmoid(r)) - np.log(1 - sigmoid(f)),
        lambda r, f: -np.log(sigmoid(f)),
    ),
    "Salimans et al., 2016": (
        adversarial.non_saturating(label_smoothing=0.1),
        lambda r, f: -0.9 * np.log(sigmoid(r)) - 0.1 * np.log(1 - sigmoid(r)) - np.log(1 - sigmoid(f)),
        lambda r, f: -np.log(sigmoid(f)),
    ),
    "Mao et al., 2017": (
        adversarial.least_squares(),
        lambda r, f: (r - 1) ** 2 / 2 + f**2 / 2,
        lambda r, f: (f - 1) ** 2 / 2,
    ),
    "Miyato et al., 2018": (
        adversarial.hinge(),
        lambda r, f: -np.minimum(0, -1 + r) - np.minimum(0, -1 - f),
        lambda r, f: -f,
    ),
    "Arjovsky et al., 2017": (adversarial.wasserstein(), lambda r, f: f - r, lambda r, f: -f),
    "Jolicoeur-Martineau, 2018": (
        adversarial.relativistic(),
        lambda r, f: -np.log(sigmoid(r - f)),
        lambda r, f: -np.log(sigmoid(f - r)),
    ),
}
every_game = pytest.mark.parametrize(("game", "discriminator", "generator"), list(PAPERS.values()), ids=list(PAPERS))
games = pytest.mark.parametrize("game", [game for game, *_ in PAPERS.values()], ids=list(PAPERS))


def logits(*shape: int, dtype: Any = np.float32) -> tuple[Array, Array]:
    real, fake = 2 * np.random.default_rng(0).normal(size=(2, *shape))
    return real.astype(dtype), fake.astype(dtype)


def both_sides(game: Game, real: tf.Tensor, fake: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    return game.discriminator(real, fake), game.generator(fake, real)


@every_game
@pytest.mark.parametrize("shape", [(7,), (7, 1), (7, 3, 4), (7, 3, 4, 1)])
def test_losses_are_the_papers_and_a_map_counts_by_its_mean(game, discriminator, generator, shape) -> None:
    real, fake = logits(*shape)
    axes = tuple(range(1, len(shape)))
    for found, formula in zip(both_sides(game, real, fake), (discriminator, generator), strict=True):
        assert found.shape == [7]
        assert found.dtype == tf.float32
        expected = formula(real.astype(np.float64), fake.astype(np.float64)).mean(axes)
        np.testing.assert_allclose(found, expected, rtol=2e-6, atol=2e-6)


@games
def test_real_logits_are_read_only_by_a_paired_generator(game) -> None:
    real, fake = logits(5)
    if game.paired:
        with pytest.raises(ValueError, match=re.escape("call `game.generator(d(fake), d(real))`")):
            game.generator(fake)
    else:
        np.testing.assert_array_equal(game.generator(fake), game.generator(fake, real))


def cheapest_shared_logit(game: Game) -> float | None:
    """Returns the logit shared by real and fake that costs the discriminator least, from 401 candidates."""
    logits = np.linspace(-2.0, 2.0, 401)
    costs = game.discriminator(tf.constant(logits), tf.constant(logits)).numpy()
    best = logits[costs <= costs.min() + 1e-9]
    return None if best.size == logits.size else float(best.mean())


@pytest.mark.parametrize(
    ("game", "border"),
    [
        *((adversarial.non_saturating(label_smoothing=s), np.log((1 - s) / (1 + s))) for s in (0.0, 0.1, 0.2, 0.7)),
        (adversarial.least_squares(), 0.5),
        (adversarial.hinge(), 0.0),
        (adversarial.wasserstein(), None),
        (adversarial.relativistic(), None),
    ],
)
def test_a_game_knows_the_logit_of_an_even_chance(game: Game, border: float | None) -> None:
    found = cheapest_shared_logit(game)
    if border is None:
        assert game.border is None
        assert found is None
    else:
        assert game.border == pytest.approx(border, abs=1e-12)
        assert found == pytest.approx(border, abs=0.005)  # half the distance between two candidates


def test_a_discriminator_is_right_beyond_the_border_or_in_the_order_of_a_pair() -> None:
    real, fake = tf.constant([[0.6, 0.4], [2.0, -1.0]]), tf.constant([[0.4, 0.6], [1.0, -2.0]])
    found = adversarial.least_squares().accuracy(real, fake)
    np.testing.assert_array_equal(found["real_accuracy"], [0.5, 0.5])
    np.testing.assert_array_equal(found["fake_accuracy"], [0.5, 0.5])
    found = adversarial.relativistic().accuracy(real, fake)
    np.testing.assert_array_equal(found["real_accuracy"], [0.5, 1.0])
    np.testing.assert_array_equal(found["fake_accuracy"], [0.5, 1.0])


@games
def test_a_row_depends_on_itself_alone(game) -> None:
    real, fake = logits(6, 2, 2)
    whole = both_sides(game, real, fake)
    for i in range(6):
        row = both_sides(game, real[i : i + 1], fake[i : i + 1])
        np.testing.assert_allclose([x[0] for x in row], [x[i] for x in whole], rtol=1e-6)


@games
@pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16, tf.float64])
def test_half_precision_is_computed_in_float32_and_float64_as_it_is(game, dtype) -> None:
    real, fake = (tf.cast(x, dtype) for x in logits(5))
    full = tf.float64 if dtype == tf.float64 else tf.float32
    expected = both_sides(game, tf.cast(real, full), tf.cast(fake, full))
    for a, b in zip(both_sides(game, real, fake), expected, strict=True):
        assert a.dtype == full
        np.testing.assert_array_equal(a, b)


def slopes(game: Game, real: tf.Tensor, fake: tf.Tensor) -> list[tf.Tensor]:
    """Returns both losses, their gradients, and the gradients of those."""
    found: list[tf.Tensor] = []
    for loss in (game.discriminator, lambda r, f: game.generator(f, r)):
        with tf.GradientTape() as outer:
            outer.watch([real, fake])
            with tf.GradientTape() as inner:
                inner.watch([real, fake])
                value = loss(real, fake)
            first = inner.gradient(value, [real, fake], unconnected_gradients=tf.UnconnectedGradients.ZERO)
            total = tf.add_n([tf.reduce_sum(g * g) for g in first])
        second = outer.gradient(total, [real, fake], unconnected_gradients=tf.UnconnectedGradients.ZERO)
        found += [value, *first, *second]
    return [tf.convert_to_tensor(x) for x in found]


@games
def test_logits_of_ten_thousand_have_finite_losses_and_gradients_of_both_orders(game) -> None:
    extremes = np.array([-1e4, -1.0, 0.0, 1.0, 1e4], np.float32)
    real, fake = (tf.constant(x.ravel()) for x in np.meshgrid(extremes, extremes))
    for x in slopes(game, real, fake):
        assert np.all(np.isfinite(x))


@pytest.mark.long
def test_losses_and_gradients_are_the_same_eagerly_in_a_graph_and_under_xla() -> None:
    def all_games(real: tf.Tensor, fake: tf.Tensor) -> dict[str, list[tf.Tensor]]:
        return {name: slopes(game, real, fake) for name, (game, *_) in PAPERS.items()}

    real, fake = (tf.constant(x) for x in logits(5, 2, 2))
    eager, spec = all_games(real, fake), tf.TensorSpec([None, 2, 2], tf.float32)
    graph = tf.function(all_games, input_signature=[spec, spec], autograph=False)
    for call in (graph, tf.function(all_games, jit_compile=True, autograph=False)):
        for name, found in call(real, fake).items():
            for a, b in zip(found, eager[name], strict=True):
                np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6, err_msg=name)


def test_hopeless_generator_has_a_gradient_except_with_a_saturating_loss() -> None:
    fake = tf.constant([-1e4])
    with tf.GradientTape() as tape:
        tape.watch(fake)
        loss = adversarial.non_saturating().generator(fake)
    np.testing.assert_array_equal(tape.gradient(loss, fake), [-1.0])


def test_smoothed_labels_are_learnt_exactly_and_fakes_are_not_smoothed() -> None:
    game = adversarial.non_saturating(label_smoothing=0.2)
    real, fake = tf.constant([np.log(0.8 / 0.2)], tf.float64), tf.constant([-30.0], tf.float64)
    with tf.GradientTape() as tape:
        tape.watch([real, fake])
        loss = game.discriminator(real, fake)
    at_real, at_fake = tape.gradient(loss, [real, fake])
    np.testing.assert_allclose(at_real, 0.0, atol=1e-12)  # D(x) = 1 - s
    np.testing.assert_allclose(at_fake, sigmoid(np.float64(-30.0)), rtol=1e-6)


def test_a_gin_file_names_a_game() -> None:
    class Player:
        def __init__(self, game: Game):
            self.game = game

    player = gin.external_configurable(Player, "AdversarialTestPlayer")
    gin.parse_config(
        "AdversarialTestPlayer.game = @non_saturating()\nnon_saturating.label_smoothing = 0.1", skip_unknown=False
    )
    real, fake = logits(4)
    expected = PAPERS["Salimans et al., 2016"][0].discriminator(real, fake)
    np.testing.assert_array_equal(player().game.discriminator(real, fake), expected)
    for name in ("least_squares", "hinge", "wasserstein", "relativistic"):
        gin.parse_config(f"AdversarialTestPlayer.game = @{name}()")
        assert player().game.paired == (name == "relativistic")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: adversarial.non_saturating(label_smoothing=1.5), "`label_smoothing` is 1.5"),
        (lambda: adversarial.hinge().discriminator(tf.zeros([4]), tf.zeros([4, 1])), "`fake_logits` has shape (4, 1)"),
        (lambda: adversarial.relativistic().discriminator(tf.zeros([4]), tf.zeros([3])), "`fake_logits` has shape"),
        (lambda: adversarial.wasserstein().generator(tf.zeros([4], tf.int32)), "`fake_logits` is int32"),
        (lambda: adversarial.hinge().generator(tf.zeros([])), "it needs the axes [rows] or [rows, ...]"),
        (lambda: r1(lambda x: tf.zeros([3]), tf.zeros([3, 2])), "don't depend on its images"),
        (lambda: r2(lambda x: tf.reduce_sum(x), tf.zeros([3, 2])), "`logits` has shape ()"),
        (
            lambda: gradient_penalty(tf.identity, tf.zeros([3, 2]), tf.zeros([3, 1]), Rng.from_seed(0)),
            "`fake` has shape (3, 1)",
        ),
    ],
)
def test_bad_input_is_named(call, message) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        call()
