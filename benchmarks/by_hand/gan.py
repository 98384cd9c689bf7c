"""A GAN of perceptrons (Goodfellow et al., 2014), with R1 (Mescheder et al., 2018) and an average of G's weights."""

import itertools
from collections.abc import Sequence

import tensorflow as tf

from benchmarks.by_hand.adam import Adam

BATCH, PIXELS, LATENTS, HIDDEN = 64, 64, 64, [256, 256]
RATE, BETA_1, BETA_2, EPSILON, R1, DECAY = 1e-3, 0.0, 0.99, 1e-5, 0.3, 0.999


class Gan:
    """Two lists of weights, and the step that trains them."""

    figures = ("d_loss", "real_accuracy", "fake_accuracy", "g_loss")

    def __init__(self, *, kernel: bool = False):
        self.g = perceptron([LATENTS, *HIDDEN, PIXELS])
        self.d = perceptron([PIXELS, *HIDDEN, 1])
        self.average = [tf.Variable(tf.zeros_like(w)) for w in self.g]
        self.g_adam = Adam(self.g, RATE, beta_1=BETA_1, beta_2=BETA_2, epsilon=EPSILON, kernel=kernel)
        self.d_adam = Adam(self.d, RATE, beta_1=BETA_1, beta_2=BETA_2, epsilon=EPSILON, kernel=kernel)

    @property
    def parameters(self) -> list[tf.Variable]:
        return [*self.g, *self.d]

    def generate(self, z: tf.Tensor) -> tf.Tensor:
        """Returns flat images in [-1, 1]."""
        w1, b1, w2, b2, w3, b3 = self.g
        return tf.tanh(tf.nn.relu(tf.nn.relu(z @ w1 + b1) @ w2 + b2) @ w3 + b3)

    def judge(self, x: tf.Tensor) -> tf.Tensor:
        """Returns one logit per flat image."""
        w1, b1, w2, b2, w3, b3 = self.d
        h = tf.nn.leaky_relu(tf.nn.leaky_relu(x @ w1 + b1, 0.2) @ w2 + b2, 0.2)
        return (h @ w3 + b3)[:, 0]

    def d_losses(self, real: tf.Tensor, fake: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Returns the loss with its penalty, and both logits; loss and penalty share the logits of real images."""
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(real)
            real_logits = self.judge(real)
        slopes = tape.gradient(real_logits, real)
        fake_logits = self.judge(fake)
        losses = tf.nn.softplus(-real_logits) + tf.nn.softplus(fake_logits)
        penalties = tf.reduce_sum(tf.square(slopes), 1)
        return tf.reduce_mean(losses + R1 / 2.0 * penalties), real_logits, fake_logits

    def g_losses(self, fake: tf.Tensor) -> tf.Tensor:
        """Returns the generator's non-saturating loss."""
        return tf.reduce_mean(tf.nn.softplus(-self.judge(fake)))

    def step(self, image: tf.Tensor) -> tf.Tensor:
        """Updates D, then G with the same fakes; returns the metrics."""
        real = 2.0 * tf.reshape(image, [BATCH, PIXELS]) - 1.0
        with tf.GradientTape() as g_tape:
            fake = self.generate(tf.random.normal([BATCH, LATENTS]))
        with tf.GradientTape() as d_tape:
            d_loss, real_logits, fake_logits = self.d_losses(real, fake)
        self.d_adam.apply(d_tape.gradient(d_loss, self.d))

        # The gradient from D's new weights flows back through the forward pass that made the fakes.
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(fake)
            g_loss = self.g_losses(fake)
        asked = tape.gradient(g_loss, fake)
        t = self.g_adam.apply(g_tape.gradient(fake, self.g, output_gradients=asked))
        share = (1.0 - DECAY) / (1.0 - DECAY**t)
        for average, w in zip(self.average, self.g, strict=True):
            average.assign_add(share * (w - average))
        return tf.stack([d_loss, accuracy(real_logits > 0.0), accuracy(fake_logits < 0.0), g_loss])


def perceptron(sizes: Sequence[int]) -> list[tf.Variable]:
    """Returns weights and biases in turn (He et al., 2015)."""
    found = []
    for size, out_size in itertools.pairwise(sizes):
        w = tf.random.normal([size, out_size], stddev=(2.0 / size) ** 0.5)
        found += [tf.Variable(w), tf.Variable(tf.zeros([out_size]))]
    return found


def accuracy(right: tf.Tensor) -> tf.Tensor:
    """Returns the fraction of true values."""
    return tf.reduce_mean(tf.cast(right, tf.float32))
