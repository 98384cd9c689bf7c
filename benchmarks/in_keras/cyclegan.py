"""The CycleGAN of `benchmarks.by_hand.cyclegan` in Keras, with Keras layers, optimizers and metrics.

Keras has no image history, so this uses the hand-written one.
"""

from typing import Any

import keras  # type: ignore[import-untyped]
import tensorflow as tf

from benchmarks.by_hand import cyclegan as hand
from benchmarks.by_hand.cyclegan import BETA_1, BETA_2, CHANNELS, DEFAULT, EPSILON, Sizes, distance, mean_square
from benchmarks.by_hand.history import History


class Reflect(keras.layers.Layer):
    """Pads images with `size` mirrored pixels."""

    def __init__(self, size: int):
        super().__init__()
        self.size = size

    def call(self, x: tf.Tensor) -> tf.Tensor:
        return hand.reflected(x, self.size)


class Schedule(keras.optimizers.schedules.LearningRateSchedule):
    """The learning-rate schedule of the hand-written loop."""

    def __call__(self, step: tf.Tensor) -> tf.Tensor:
        return hand.rate(step)


class CycleGan(keras.Model):
    """All four networks; `fit` takes batches of image pairs."""

    def __init__(self, sizes: Sizes = DEFAULT, *, rate: Any = None, epsilon: float = EPSILON) -> None:
        super().__init__()
        self.rate, self.epsilon = rate or Schedule(), epsilon
        self.g_ab, self.g_ba = generator(sizes), generator(sizes)
        self.d_a, self.d_b = discriminator(sizes), discriminator(sizes)
        shape = [sizes.size, sizes.size, CHANNELS]
        self.history_a, self.history_b = History(hand.POOL, shape), History(hand.POOL, shape)
        self.trackers = [keras.metrics.Mean(name) for name in hand.CycleGan.figures]

    def compile(self, **settings: Any) -> None:
        """Makes the optimizers too; `settings` are arguments of Keras's `compile`."""
        super().compile(**settings)
        self.g_optimizer, self.d_a_optimizer, self.d_b_optimizer = (
            keras.optimizers.Adam(self.rate, beta_1=BETA_1, beta_2=BETA_2, epsilon=self.epsilon) for _ in range(3)
        )

    @property
    def metrics(self) -> list[Any]:
        return list(self.trackers)

    def train_step(self, data: tuple[tf.Tensor, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Updates both generators, then each discriminator."""
        a, b = data
        with tf.GradientTape() as tape:
            fake_b, same_b = tf.split(self.g_ab(tf.concat([a, b], 0), training=True), 2)
            fake_a, same_a = tf.split(self.g_ba(tf.concat([b, a], 0), training=True), 2)
            adversarial = mean_square(self.d_a(fake_a) - 1.0) + mean_square(self.d_b(fake_b) - 1.0)
            cycle = distance(self.g_ba(fake_b, training=True), a) + distance(self.g_ab(fake_a, training=True), b)
            identity = distance(same_a, a) + distance(same_b, b)
            loss = adversarial + hand.CYCLE * cycle + hand.IDENTITY * identity
        weights = [*self.g_ab.trainable_weights, *self.g_ba.trainable_weights]
        self.g_optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        figures = [loss, adversarial, cycle, identity]
        figures += self.train_discriminator(self.d_a, self.d_a_optimizer, a, self.history_a.show(fake_a))
        figures += self.train_discriminator(self.d_b, self.d_b_optimizer, b, self.history_b.show(fake_b))
        for tracker, figure in zip(self.trackers, figures, strict=True):
            tracker.update_state(figure)
        return {tracker.name: tracker.result() for tracker in self.trackers}

    def train_discriminator(self, d: Any, optimizer: Any, real: tf.Tensor, fake: tf.Tensor) -> list[tf.Tensor]:
        """Updates one discriminator; returns its metrics."""
        with tf.GradientTape() as tape:
            real_logits, fake_logits = tf.split(d(tf.concat([real, fake], 0), training=True), 2)
            loss = 0.5 * (mean_square(real_logits - 1.0) + mean_square(fake_logits))
        optimizer.apply_gradients(zip(tape.gradient(loss, d.trainable_weights), d.trainable_weights, strict=True))
        return [loss, tf.cast(real_logits > 0.5, tf.float32), tf.cast(fake_logits < 0.5, tf.float32)]


def conv(channels: int, size: int, **settings: Any) -> Any:
    """A convolution, without bias by default: the following norm would cancel it."""
    init = keras.initializers.RandomNormal(stddev=0.02)
    return keras.layers.Conv2D(channels, size, kernel_initializer=init, **{"use_bias": False, **settings})


def norm() -> Any:
    """Instance norm: one channel per group."""
    return keras.layers.GroupNormalization(groups=-1, epsilon=1e-6)


def generator(sizes: Sizes) -> Any:
    """Two downsampling convolutions, the residual blocks, two upsampling ones."""
    c1, c2, c4 = sizes.width, 2 * sizes.width, 4 * sizes.width
    image = x = keras.Input([sizes.size, sizes.size, CHANNELS])
    x = keras.layers.ReLU()(norm()(conv(c1, 7)(Reflect(3)(x))))
    for channels in (c2, c4):
        x = conv(channels, 3, strides=2)(keras.layers.ZeroPadding2D(1)(x))
        x = keras.layers.ReLU()(norm()(x))
    for _ in range(sizes.blocks):
        y = keras.layers.ReLU()(norm()(conv(c4, 3)(Reflect(1)(x))))
        x = keras.layers.Add()([x, norm()(conv(c4, 3)(Reflect(1)(y)))])
    for channels in (c2, c1):
        init = keras.initializers.RandomNormal(stddev=0.02)
        up = keras.layers.Conv2DTranspose(
            channels, 3, strides=2, padding="same", use_bias=False, kernel_initializer=init
        )
        x = keras.layers.ReLU()(norm()(up(x)))
    return keras.Model(image, conv(CHANNELS, 7, use_bias=True, activation="tanh")(Reflect(3)(x)))


def discriminator(sizes: Sizes) -> Any:
    """C32-C64."""
    c1, c2 = sizes.d_channels
    return keras.Sequential(
        [
            keras.Input([sizes.size, sizes.size, CHANNELS]),
            keras.layers.ZeroPadding2D(1),
            conv(c1, 4, strides=2, use_bias=True),
            keras.layers.LeakyReLU(0.2),
            keras.layers.ZeroPadding2D(1),
            conv(c2, 4),
            norm(),
            keras.layers.LeakyReLU(0.2),
            keras.layers.ZeroPadding2D(1),
            conv(1, 4, use_bias=True),
        ]
    )
