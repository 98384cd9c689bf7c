"""Compares the losses of hand-written steps with Tapeloop's, for the same weights and images.

Kernels are copied. Scales are ones, offsets and biases zeros on both sides before the first step.
"""

from collections.abc import Sequence

import tensorflow as tf

from benchmarks.by_hand import cyclegan as hand_cyclegan
from benchmarks.by_hand import gan as hand_gan
from core.random import Rng
from models.gan.task import Gan
from models.translation.cyclegan import CycleGan

RNG = Rng.from_seed(0)


def gan(ours: Gan, by_hand: hand_gan.Gan) -> float:
    """Returns the largest relative difference of the GAN's losses."""
    _copy([layer.w for layer in (*ours.g.hidden, ours.g.image)], by_hand.g[::2])
    _copy([layer.w for layer in (*ours.d.hidden, ours.d.head.logit)], by_hand.d[::2])
    z, image = RNG.fold("z").normal([64, 64]), RNG.fold("image").uniform([64, 8, 8, 1])
    fake = ours.g(z)
    flat, real = by_hand.generate(z), 2.0 * tf.reshape(image, [64, 64]) - 1.0
    batch = {"image": image, "fake": fake}
    return _difference(
        [
            fake,
            tf.reduce_mean(ours.d_loss(batch, RNG).per_example),
            tf.reduce_mean(ours.g_loss(batch, RNG).per_example),
        ],
        [tf.reshape(flat, fake.shape), by_hand.d_losses(real, flat)[0], by_hand.g_losses(flat)],
    )


def cyclegan(ours: CycleGan, by_hand: hand_cyclegan.CycleGan) -> float:
    """Returns the largest relative difference of CycleGAN's losses."""
    for name in ("g_ab", "g_ba", "d_a", "d_b"):
        kernels = [v for path, v in getattr(ours, name).parameters().items() if path.endswith("/w")]
        _copy(kernels, getattr(by_hand, name).kernels)
    a, b = (2.0 * RNG.fold(name).uniform([4, 32, 32, 3]) - 1.0 for name in "ab")
    losses = ours.generator_loss({"a": a, "b": b}, RNG)
    figures, fake_a, fake_b = by_hand.g_losses(a, b)
    seen = {"a": a, "b": b, "shown_a": fake_a, "shown_b": fake_b}
    parts = [losses.per_example, *(losses.metrics[name] for name in ("adversarial", "cycle", "identity"))]
    for d, domain in ((ours.d_a, "a"), (ours.d_b, "b")):
        parts.append(ours.discriminator_loss(d, domain, seen, RNG).per_example)
    judged = [by_hand.d_losses(by_hand.d_a, a, fake_a)[0], by_hand.d_losses(by_hand.d_b, b, fake_b)[0]]
    return _difference([tf.reduce_mean(x) for x in parts], [*figures, *judged])


def _copy(kernels: Sequence[tf.Variable], by_hand: Sequence[tf.Variable]) -> None:
    for ours, other in zip(kernels, by_hand, strict=True):
        # TensorFlow has the channels of a transposed convolution in the other order.
        other.assign(ours if ours.shape == other.shape else tf.transpose(ours, [0, 1, 3, 2]))


def _difference(ours: Sequence[tf.Tensor], by_hand: Sequence[tf.Tensor]) -> float:
    return max(
        float(tf.reduce_max(tf.abs(x - y)) / tf.reduce_max(tf.abs(x))) for x, y in zip(ours, by_hand, strict=True)
    )
