"""A DCGAN (Radford et al., 2016) at 32 by 32 pixels, with group norms in G and none in D: networks, losses and step."""

import itertools
from collections.abc import Sequence

import tensorflow as tf

from benchmarks.by_hand.adam import Adam

SIZE, COLOURS, LATENTS, CHANNELS, GROUPS = 32, 3, 64, (32, 64, 128), 8
RATE, BETA_1, BETA_2, EPSILON = 2e-4, 0.5, 0.999, 1e-8


class Dcgan:
    """Both networks and the step that trains them; each list of kernels is in layer order."""

    figures = ("d_loss", "g_loss")

    def __init__(self, *, kernel: bool = False):
        smallest, up, down = SIZE // 2 ** len(CHANNELS), CHANNELS[::-1], (COLOURS, *CHANNELS)
        self.g_kernels = [he([LATENTS, smallest**2 * up[0]], LATENTS)]
        # TensorFlow's transposed convolution takes the kernel of the convolution whose gradient it is.
        self.g_kernels += [he([4, 4, out, size], 16 * size) for size, out in itertools.pairwise((*up, COLOURS))]
        self.norms = [(tf.Variable(tf.ones([c])), tf.Variable(tf.zeros([c]))) for c in up]
        self.g_bias = tf.Variable(tf.zeros([COLOURS]))
        self.d_kernels = [he([4, 4, size, out], 16 * size) for size, out in itertools.pairwise(down)]
        self.d_kernels += [he([smallest**2 * down[-1], 1], smallest**2 * down[-1])]
        self.d_biases = [tf.Variable(tf.zeros([w.shape[-1]])) for w in self.d_kernels]
        self.g = [*self.g_kernels, *itertools.chain(*self.norms), self.g_bias]
        self.d = [*self.d_kernels, *self.d_biases]
        self.g_adam, self.d_adam = (
            Adam(parameters, RATE, beta_1=BETA_1, beta_2=BETA_2, epsilon=EPSILON, kernel=kernel)
            for parameters in (self.g, self.d)
        )

    @property
    def parameters(self) -> list[tf.Variable]:
        return [*self.g, *self.d]

    def generate(self, z: tf.Tensor) -> tf.Tensor:
        """Returns images in [-1, 1]."""
        first, *up = self.g_kernels
        x = tf.reshape(z @ first, [z.shape[0], SIZE // 2 ** len(CHANNELS), SIZE // 2 ** len(CHANNELS), CHANNELS[-1]])
        for w, (scale, offset) in zip(up, self.norms, strict=True):
            x = tf.nn.relu(group_norm(x, scale, offset))
            rows, height, width, _ = x.shape
            x = tf.nn.conv2d_transpose(x, w, [rows, 2 * height, 2 * width, w.shape[2]], 2)
        return tf.tanh(x + self.g_bias)

    def judge(self, x: tf.Tensor) -> tf.Tensor:
        """Returns one logit per image."""
        *down, last = self.d_kernels
        for w, b in zip(down, self.d_biases[:-1], strict=True):
            x = tf.nn.leaky_relu(tf.nn.conv2d(x, w, 2, "SAME") + b, 0.2)
        return (tf.reshape(x, [x.shape[0], -1]) @ last + self.d_biases[-1])[:, 0]

    def d_losses(self, real: tf.Tensor, fake: tf.Tensor) -> tf.Tensor:
        """Returns the discriminator's losses from one pass over real and fake images."""
        real_logits, fake_logits = tf.split(self.judge(tf.concat([real, fake], 0)), 2)
        return tf.reduce_mean(tf.nn.softplus(-real_logits) + tf.nn.softplus(fake_logits))

    def step(self, image: tf.Tensor, z: tf.Tensor) -> tf.Tensor:
        """Updates D, then G with the same fakes, for images in [0, 1]; returns the metrics."""
        with tf.GradientTape() as g_tape:
            fake = self.generate(z)
        with tf.GradientTape() as d_tape:
            d_loss = self.d_losses(2.0 * image - 1.0, fake)
        self.d_adam.apply(d_tape.gradient(d_loss, self.d))

        # The gradient from D's new weights flows back through the forward pass that made the fakes.
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(fake)
            g_loss = tf.reduce_mean(tf.nn.softplus(-self.judge(fake)))
        asked = tape.gradient(g_loss, fake)
        self.g_adam.apply(g_tape.gradient(fake, self.g, output_gradients=asked))
        return tf.stack([d_loss, g_loss])


def he(shape: Sequence[int], inputs: int) -> tf.Variable:
    return tf.Variable(tf.random.normal(shape, stddev=(2.0 / inputs) ** 0.5))


def group_norm(x: tf.Tensor, scale: tf.Variable, offset: tf.Variable) -> tf.Tensor:
    rows, height, width, channels = x.shape
    members = channels // GROUPS
    wide = tf.reshape(x, [rows, height * width, GROUPS, members])
    mean, variance = tf.nn.moments(wide, [1, 3], keepdims=True)
    scale, offset = (tf.reshape(v, [GROUPS, members]) for v in (scale, offset))
    return tf.reshape(tf.nn.batch_normalization(wide, mean, variance, offset, scale, 1e-6), x.shape)
