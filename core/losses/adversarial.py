"""Adversarial losses of a discriminator and a generator, and gradient penalties.

A `Game` holds the discriminator's and the generator's loss, as functions of logits. In gin: `Gan.game = @hinge()`.

    >>> game = hinge()
    >>> real_logits, fake_logits = tf.constant([2.0, 0.5]), tf.constant([-2.0, 0.5])
    >>> print(game.discriminator(real_logits, fake_logits).numpy(), game.generator(fake_logits).numpy())
    [0. 2.] [ 2.  -0.5]

Logits are `[rows]`, or maps `[rows, ...]` of one logit per patch (PatchGAN: Isola et al., 2017), over which losses are
averaged. Losses and penalties are one value per row, computed in float32 for every floating input (float64 stays
float64). Rows are independent.

A penalty is the paper's term without its weight (10 or γ/2), by which the step function multiplies it:

    losses = game.discriminator(d(real), d(fake)) + 10.0 * gradient_penalty(d, real, fake, rng)
    losses = game.discriminator(d(real), d(fake)) + gamma / 2 * (r1(d, real) + r2(d, fake))

To condition a critic on labels, pass `lambda images: d(images, labels)`.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import gin
import tensorflow as tf

from core import arguments
from core.choice import zero_where
from core.losses.labels import share_of
from core.random import Rng

Critic = Callable[[tf.Tensor], tf.Tensor]  # images [rows, ...] -> logits


class DiscriminatorLoss(Protocol):
    """The type of `Game.discriminator`, the discriminator's loss."""

    def __call__(self, real_logits: Any, fake_logits: Any) -> tf.Tensor:
        """Returns the loss of each row's real and fake logit: `[rows]`."""


class GeneratorLoss(Protocol):
    """The type of `Game.generator`, the generator's loss."""

    def __call__(self, fake_logits: Any, real_logits: Any = None) -> tf.Tensor:
        """Returns the loss of each row's fake logit: `[rows]`. Only relativistic losses use `real_logits`."""


class Game(NamedTuple):
    """The two losses of an adversarial game, and `border`: logits above it mean "real", logits below it "fake".

    At `border`, an example is as likely real as fake. `border` is None for relativistic losses: in these, only the
    difference of two logits has a meaning.
    """

    discriminator: DiscriminatorLoss
    generator: GeneratorLoss
    border: float | None
    paired: bool = False  # whether the generator's loss reads real logits; otherwise they aren't computed for it

    def accuracy(self, real_logits: tf.Tensor, fake_logits: tf.Tensor) -> dict[str, tf.Tensor]:
        """Returns `{"real_accuracy": [rows], "fake_accuracy": [rows]}`: the share of right logits in each row.

        A real logit is right above `border`, and a fake one below it. If `border` is None, both are right if the real
        logit exceeds the fake one.
        """
        real_logits, fake_logits = _logits("real_logits", real_logits), _logits("fake_logits", fake_logits)
        right = {
            "real_accuracy": real_logits > (fake_logits if self.border is None else self.border),
            "fake_accuracy": fake_logits < (real_logits if self.border is None else self.border),
        }
        return {name: _per_row(tf.cast(x, tf.float32)) for name, x in right.items()}


@gin.configurable
def non_saturating(label_smoothing: float = 0.0) -> Game:
    """Plays −log D(x) − log(1 − D(G(z))) against −log D(G(z)), with D = σ(logit) (Goodfellow et al., 2014).

    With `label_smoothing` s, the discriminator's target is 1 − s for real examples, and 0 for fakes. A smoothed target
    for fakes would teach the generator to repeat itself (Salimans et al., 2016). The border then is log((1 − s) / (1 +
    s)): there, the loss of a real example and a fake with equal logits l has the slope 2 σ(l) − 1 + s = 0.
    """
    arguments.check_fraction(label_smoothing=label_smoothing)
    return _unpaired(
        border=math.log((1.0 - label_smoothing) / (1.0 + label_smoothing)),
        real=lambda logits: (
            (1.0 - label_smoothing) * tf.math.softplus(-logits) + share_of(tf.math.softplus(logits), label_smoothing)
        ),
        fake=tf.math.softplus,
        generator=lambda logits: tf.math.softplus(-logits),
    )


@gin.configurable
def least_squares() -> Game:
    """Plays (D(x) − 1)² / 2 + D(G(z))² / 2 against (D(G(z)) − 1)² / 2 (Mao et al., 2017, their equation 9)."""
    return _unpaired(
        border=0.5,
        real=lambda logits: 0.5 * tf.square(logits - 1.0),
        fake=lambda logits: 0.5 * tf.square(logits),
        generator=lambda logits: 0.5 * tf.square(logits - 1.0),
    )


@gin.configurable
def hinge() -> Game:
    """Plays max(0, 1 − D(x)) + max(0, 1 + D(G(z))) against −D(G(z)) (Lim and Ye, 2017; Miyato et al., 2018)."""
    return _unpaired(
        border=0.0,
        real=lambda logits: tf.nn.relu(1.0 - logits),
        fake=lambda logits: tf.nn.relu(1.0 + logits),
        generator=tf.negative,
    )


@gin.configurable
def wasserstein() -> Game:
    """Plays D(G(z)) − D(x) against −D(G(z)) (Arjovsky et al., 2017). Add `gradient_penalty` to keep D Lipschitz."""
    return _unpaired(border=None, real=tf.negative, fake=tf.identity, generator=tf.negative)


@gin.configurable
def relativistic() -> Game:
    """Plays −log σ(D(x) − D(G(z))) against −log σ(D(G(z)) − D(x)) (Jolicoeur-Martineau, 2018).

    As in RpGAN, each row compares its real example with its own fake alone. R3GAN (Huang et al., 2024) adds the
    penalties `r1` and `r2`.
    """

    def discriminator(real_logits: Any, fake_logits: Any) -> tf.Tensor:
        real, fake = _pair(real_logits, fake_logits)
        return _per_row(tf.math.softplus(fake - real))

    def generator(fake_logits: Any, real_logits: Any = None) -> tf.Tensor:
        if real_logits is None:
            raise ValueError(
                "`real_logits` is None, but the relativistic generator competes with real examples (`game.paired`): "
                "call `game.generator(d(fake), d(real))`."
            )
        real, fake = _pair(real_logits, fake_logits)
        return _per_row(tf.math.softplus(real - fake))

    return Game(discriminator, generator, border=None, paired=True)


def gradient_penalty(critic: Critic, real: Any, fake: Any, rng: Rng) -> tf.Tensor:
    """Returns (‖∇D(x̂)‖ − 1)² [rows] at x̂ = εx + (1 − ε)G(z), for WGAN-GP (Gulrajani et al., 2017), where λ = 10.

    Each row draws one ε uniformly from [0, 1]. The critic must treat rows independently: it may not normalise over the
    batch.
    """
    real = tf.convert_to_tensor(real)
    fake = arguments.shaped_like("fake", tf.cast(tf.convert_to_tensor(fake), real.dtype), "real", real)
    rows = real.shape[0] if real.shape[0] is not None else tf.shape(real)[0]
    mix = tf.reshape(tf.cast(rng.rows.uniform(rows), real.dtype), [rows] + [1] * (real.shape.rank - 1))
    _, squares = logits_and_slopes(critic, mix * real + (1.0 - mix) * fake)
    # Where the root's slope is infinite, a constant replaces its argument: a zero norm then has no gradient, not `nan`.
    flat = tf.equal(squares, 0.0)
    norms = zero_where(flat, tf.sqrt(tf.where(flat, tf.ones_like(squares), squares)))
    return tf.square(norms - 1.0)


def r1(critic: Critic, real: Any) -> tf.Tensor:
    """Returns ‖∇D(x)‖² [rows] at real examples x; multiply it by γ/2 (Mescheder et al., 2018)."""
    return logits_and_slopes(critic, real)[1]


def r2(critic: Critic, fake: Any) -> tf.Tensor:
    """Returns ‖∇D(G(z))‖² [rows] at fakes G(z); multiply it by γ/2 (Mescheder et al., 2018)."""
    return logits_and_slopes(critic, fake)[1]


def logits_and_slopes(critic: Critic, images: Any) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the logits D(x) and the slopes ‖∇D(x)‖² [rows] from one forward pass, for a loss with `r1` or `r2`.

    If the critic returns a map of logits, the slope is that of the row's mean logit.
    """
    images = tf.convert_to_tensor(images)
    with tf.GradientTape() as tape:
        tape.watch(images)
        logits = arguments.floats("logits", critic(images), min_rank=1, axes="[rows, ...]")
        of_rows = _per_row(logits)
    gradient = tape.gradient(of_rows, images)  # of the sum over rows, each of which depends only on its image
    if gradient is None:
        raise ValueError(
            f"`critic` {critic!r} returned logits that don't depend on its images ({images.dtype.name}): compute them "
            "from its argument, of floats."
        )
    gradient = arguments.floats("gradient", gradient)
    return logits, tf.reduce_sum(tf.square(gradient), axis=list(range(1, gradient.shape.rank)))


def _unpaired(
    *,
    border: float | None,
    real: Callable[[tf.Tensor], tf.Tensor],
    fake: Callable[[tf.Tensor], tf.Tensor],
    generator: Callable[[tf.Tensor], tf.Tensor],
) -> Game:
    """Returns a `Game` with the discriminator loss `real(real_logits) + fake(fake_logits)`."""

    def discriminator(real_logits: Any, fake_logits: Any) -> tf.Tensor:
        real_logits, fake_logits = _pair(real_logits, fake_logits)
        return _per_row(real(real_logits) + fake(fake_logits))

    def generator_loss(fake_logits: Any, real_logits: Any = None) -> tf.Tensor:
        return _per_row(generator(_logits("fake_logits", fake_logits)))

    return Game(discriminator, generator_loss, border)


def _logits(name: str, value: Any) -> tf.Tensor:
    return arguments.floats(name, value, min_rank=1, axes="[rows] or [rows, ...]")


def _pair(real_logits: Any, fake_logits: Any) -> tuple[tf.Tensor, tf.Tensor]:
    real = _logits("real_logits", real_logits)
    return real, arguments.targets_like("fake_logits", fake_logits, "real_logits", real)


def _per_row(values: tf.Tensor) -> tf.Tensor:
    """Returns the mean of `values` [rows, ...] over all axes except the first: [rows]."""
    return tf.reduce_mean(values, axis=list(range(1, values.shape.rank)))
