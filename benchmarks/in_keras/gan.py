"""The GAN of `benchmarks.by_hand.gan` in Keras, with Keras layers, optimizers and metrics."""

from collections.abc import Sequence
from typing import Any

import keras  # type: ignore[import-untyped]
import tensorflow as tf

from benchmarks.by_hand.gan import BATCH, BETA_1, BETA_2, DECAY, EPSILON, HIDDEN, LATENTS, PIXELS, R1, RATE


class Gan(keras.Model):
    """Both networks; `fit` takes batches of images in [0, 1]."""

    def __init__(self) -> None:
        super().__init__()
        self.g = perceptron([LATENTS, *HIDDEN, PIXELS], keras.layers.ReLU, "tanh")
        self.d = perceptron([PIXELS, *HIDDEN, 1], lambda: keras.layers.LeakyReLU(0.2), None)
        self.seeds = keras.random.SeedGenerator(0)
        self.trackers = {
            name: keras.metrics.Mean(name) for name in ("d_loss", "real_accuracy", "fake_accuracy", "g_loss")
        }

    def compile(self, **settings: Any) -> None:
        """Makes the optimizers too; `settings` are arguments of Keras's `compile`."""
        super().compile(**settings)
        settings_of_adam = {"beta_1": BETA_1, "beta_2": BETA_2, "epsilon": EPSILON}
        self.g_optimizer = keras.optimizers.Adam(RATE, **settings_of_adam, use_ema=True, ema_momentum=DECAY)
        self.d_optimizer = keras.optimizers.Adam(RATE, **settings_of_adam)

    @property
    def metrics(self) -> list[Any]:
        return list(self.trackers.values())

    def train_step(self, data: Any) -> dict[str, tf.Tensor]:
        """Updates D, then G with the same fakes."""
        image = data[0] if isinstance(data, tuple) else data
        real = 2.0 * tf.reshape(image, [BATCH, PIXELS]) - 1.0
        with tf.GradientTape() as g_tape:
            fake = self.g(keras.random.normal([BATCH, LATENTS], seed=self.seeds), training=True)
        with tf.GradientTape() as d_tape:
            with tf.GradientTape(watch_accessed_variables=False) as tape:
                tape.watch(real)
                real_logits = self.d(real, training=True)
            slopes = tape.gradient(real_logits, real)
            fake_logits = self.d(fake, training=True)
            losses = tf.nn.softplus(-real_logits) + tf.nn.softplus(fake_logits)
            d_loss = tf.reduce_mean(losses) + R1 / 2.0 * tf.reduce_mean(tf.reduce_sum(tf.square(slopes), 1))
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
        self.trackers["real_accuracy"].update_state(tf.cast(real_logits > 0.0, tf.float32))
        self.trackers["fake_accuracy"].update_state(tf.cast(fake_logits < 0.0, tf.float32))
        self.trackers["g_loss"].update_state(g_loss)
        return {name: tracker.result() for name, tracker in self.trackers.items()}


def perceptron(sizes: Sequence[int], between: Any, last: str | None) -> Any:
    """Dense layers with an activation between them, and `last` at the end."""
    net = [keras.Input([sizes[0]])]
    for size in sizes[1:-1]:
        net += [keras.layers.Dense(size, kernel_initializer="he_normal"), between()]
    return keras.Sequential([*net, keras.layers.Dense(sizes[-1], activation=last)])
