"""The DCGAN of `benchmarks.by_hand.dcgan` in Keras, with Keras layers, optimizers and metrics."""

from typing import Any

import keras  # type: ignore[import-untyped]
import tensorflow as tf

from benchmarks.by_hand.dcgan import BETA_1, BETA_2, CHANNELS, COLOURS, EPSILON, GROUPS, LATENTS, RATE, SIZE


class Dcgan(keras.Model):
    """Both networks; `fit` takes batches of images in [0, 1] and latents."""

    def __init__(self, *, epsilon: float = EPSILON) -> None:
        super().__init__()
        self.g, self.d, self.epsilon = generator(), discriminator(), epsilon
        self.trackers = {name: keras.metrics.Mean(name) for name in ("d_loss", "g_loss")}

    def compile(self, **settings: Any) -> None:
        """Makes the optimizers too; `settings` are arguments of Keras's `compile`."""
        super().compile(**settings)
        self.g_optimizer, self.d_optimizer = (
            keras.optimizers.Adam(RATE, beta_1=BETA_1, beta_2=BETA_2, epsilon=self.epsilon) for _ in range(2)
        )

    @property
    def metrics(self) -> list[Any]:
        return list(self.trackers.values())

    def train_step(self, data: tuple[tf.Tensor, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Updates D, then G with the same fakes."""
        image, z = data
        with tf.GradientTape() as g_tape:
            fake = self.g(z, training=True)
        with tf.GradientTape() as d_tape:
            both = self.d(tf.concat([2.0 * image - 1.0, fake], 0), training=True)
            real_logits, fake_logits = tf.split(both, 2)
            d_loss = tf.reduce_mean(tf.nn.softplus(-real_logits) + tf.nn.softplus(fake_logits))
        d_weights = self.d.trainable_weights
        self.d_optimizer.apply_gradients(zip(d_tape.gradient(d_loss, d_weights), d_weights, strict=True))

        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(fake)
            g_loss = tf.reduce_mean(tf.nn.softplus(-self.d(fake, training=True)))
        asked = tape.gradient(g_loss, fake)
        g_weights = self.g.trainable_weights
        gradients = g_tape.gradient(fake, g_weights, output_gradients=asked)
        self.g_optimizer.apply_gradients(zip(gradients, g_weights, strict=True))
        self.trackers["d_loss"].update_state(d_loss)
        self.trackers["g_loss"].update_state(g_loss)
        return {name: tracker.result() for name, tracker in self.trackers.items()}


def generator() -> Any:
    """A dense layer, and a transposed convolution per doubling of the size."""
    smallest, up = SIZE // 2 ** len(CHANNELS), CHANNELS[::-1]
    net = [
        keras.Input([LATENTS]),
        keras.layers.Dense(smallest**2 * up[0], use_bias=False),
        keras.layers.Reshape([smallest, smallest, up[0]]),
    ]
    for i, channels in enumerate((*up[1:], COLOURS)):
        last = i == len(up) - 1
        net += [keras.layers.GroupNormalization(GROUPS, epsilon=1e-6), keras.layers.ReLU()]
        net.append(
            keras.layers.Conv2DTranspose(
                channels, 4, strides=2, padding="same", use_bias=last, activation="tanh" if last else None
            )
        )
    return keras.Sequential(net)


def discriminator() -> Any:
    """A convolution per halving of the size, and a logit."""
    net = [keras.Input([SIZE, SIZE, COLOURS])]
    for channels in CHANNELS:
        net += [keras.layers.Conv2D(channels, 4, strides=2, padding="same"), keras.layers.LeakyReLU(0.2)]
    return keras.Sequential([*net, keras.layers.Flatten(), keras.layers.Dense(1)])
