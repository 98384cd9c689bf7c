"""CycleGAN (Zhu et al., 2017), by default at 32 by 32 pixels: networks, losses, history and step."""

from typing import NamedTuple

import tensorflow as tf

from benchmarks.by_hand.adam import Adam, Rate
from benchmarks.by_hand.history import History

BATCH, CHANNELS, POOL = 4, 3, 50
CYCLE, IDENTITY = 10.0, 5.0
RATE, BETA_1, BETA_2, EPSILON = 5e-4, 0.5, 0.999, 1e-8
STEPS, HALF = 10**6, 5 * 10**5  # so many steps that no measurement reaches the decay


class Sizes(NamedTuple):
    """Sizes of images and networks."""

    size: int = 32
    width: int = 16
    blocks: int = 3
    d_channels: tuple[int, int] = (32, 64)


DEFAULT = Sizes()


def rate(step: tf.Tensor) -> tf.Tensor:
    """Returns the paper's schedule: constant in the first half, linear decay to zero in the second."""
    return RATE * tf.clip_by_value((STEPS - tf.cast(step, tf.float32)) / HALF, 0.0, 1.0)


class Generator:
    """c7s1-16, d32, d64, R64 three times, u32, u16, c7s1-3; `w` holds the kernels, `norms` scales and offsets."""

    def __init__(self, sizes: Sizes = DEFAULT) -> None:
        c1, c2, c4 = sizes.width, 2 * sizes.width, 4 * sizes.width
        self.blocks = sizes.blocks
        residual = [[3, 3, c4, c4]] * (2 * sizes.blocks)
        # TensorFlow's transposed convolution takes the kernel of the convolution whose gradient it is.
        up = [[3, 3, c2, c4], [3, 3, c1, c2]]
        self.w = [kernel(s) for s in ([7, 7, CHANNELS, c1], [3, 3, c1, c2], [3, 3, c2, c4], *residual, *up)]
        self.norms = [scale_and_offset(c) for c in (c1, c2, c4, *[c4] * (2 * sizes.blocks), c2, c1)]
        self.last, self.bias = kernel([7, 7, c1, CHANNELS]), tf.Variable(tf.zeros([CHANNELS]))
        self.kernels = [*self.w, self.last]
        self.parameters = [*self.kernels, *(v for norm in self.norms for v in norm), self.bias]

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        w, norms = iter(self.w), iter(self.norms)
        x = tf.nn.relu(instance_norm(convolved(reflected(x, 3), next(w)), *next(norms)))
        for _ in range(2):
            x = tf.nn.relu(instance_norm(convolved(x, next(w), stride=2, padding=1), *next(norms)))
        for _ in range(self.blocks):
            y = tf.nn.relu(instance_norm(convolved(reflected(x, 1), next(w)), *next(norms)))
            x += instance_norm(convolved(reflected(y, 1), next(w)), *next(norms))
        for _ in range(2):
            rows, height, width, _ = x.shape
            up = next(w)
            x = tf.nn.conv2d_transpose(x, up, [rows, 2 * height, 2 * width, up.shape[2]], 2)
            x = tf.nn.relu(instance_norm(x, *next(norms)))
        return tf.tanh(convolved(reflected(x, 3), self.last) + self.bias)


class Discriminator:
    """PatchGAN's C32-C64: one logit per patch of 16 by 16 pixels."""

    def __init__(self, sizes: Sizes = DEFAULT) -> None:
        c1, c2 = sizes.d_channels
        self.kernels = [kernel(s) for s in ([4, 4, CHANNELS, c1], [4, 4, c1, c2], [4, 4, c2, 1])]
        self.first, self.last = tf.Variable(tf.zeros([c1])), tf.Variable(tf.zeros([1]))
        self.norm = scale_and_offset(c2)
        self.parameters = [*self.kernels, self.first, self.last, *self.norm]

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        w1, w2, w3 = self.kernels
        x = tf.nn.leaky_relu(convolved(x, w1, stride=2, padding=1) + self.first, 0.2)
        x = tf.nn.leaky_relu(instance_norm(convolved(x, w2, padding=1), *self.norm), 0.2)
        return convolved(x, w3, padding=1) + self.last


class CycleGan:
    """Four networks, two image histories, and the step that trains them."""

    figures = (
        "loss", "adversarial", "cycle", "identity",
        "d_a", "d_a/real_accuracy", "d_a/fake_accuracy", "d_b", "d_b/real_accuracy", "d_b/fake_accuracy",
    )  # fmt: skip

    def __init__(self, sizes: Sizes = DEFAULT, *, rate: float | Rate = rate, kernel: bool = False):
        self.g_ab, self.g_ba = Generator(sizes), Generator(sizes)
        self.d_a, self.d_b = Discriminator(sizes), Discriminator(sizes)
        self.history_a, self.history_b = (History(POOL, [sizes.size, sizes.size, CHANNELS]) for _ in range(2))
        self.g_parameters = [*self.g_ab.parameters, *self.g_ba.parameters]
        self.parameters = [*self.g_parameters, *self.d_a.parameters, *self.d_b.parameters]
        self.g_adam, self.d_a_adam, self.d_b_adam = (
            Adam(parameters, rate, beta_1=BETA_1, beta_2=BETA_2, epsilon=EPSILON, kernel=kernel)
            for parameters in (self.g_parameters, self.d_a.parameters, self.d_b.parameters)
        )

    def step(self, a: tf.Tensor, b: tf.Tensor) -> tf.Tensor:
        """Updates both generators, then each discriminator; returns the metrics."""
        with tf.GradientTape() as tape:
            found, fake_a, fake_b = self.g_losses(a, b)
        self.g_adam.apply(tape.gradient(found[0], self.g_parameters))
        shown_a, shown_b = self.history_a.show(fake_a), self.history_b.show(fake_b)
        for d, adam, real, fake in (
            (self.d_a, self.d_a_adam, a, shown_a),
            (self.d_b, self.d_b_adam, b, shown_b),
        ):
            with tf.GradientTape() as tape:
                losses = self.d_losses(d, real, fake)
            adam.apply(tape.gradient(losses[0], d.parameters))
            found += losses
        return tf.stack(found)

    def g_losses(self, a: tf.Tensor, b: tf.Tensor) -> tuple[list[tf.Tensor], tf.Tensor, tf.Tensor]:
        """Returns the generators' loss, its parts, and the fakes."""
        fake_b, same_b = tf.split(self.g_ab(tf.concat([a, b], 0)), 2)
        fake_a, same_a = tf.split(self.g_ba(tf.concat([b, a], 0)), 2)
        adversarial = mean_square(self.d_a(fake_a) - 1.0) + mean_square(self.d_b(fake_b) - 1.0)
        cycle = distance(self.g_ba(fake_b), a) + distance(self.g_ab(fake_a), b)
        identity = distance(same_a, a) + distance(same_b, b)
        return [adversarial + CYCLE * cycle + IDENTITY * identity, adversarial, cycle, identity], fake_a, fake_b

    def d_losses(self, d: Discriminator, real: tf.Tensor, fake: tf.Tensor) -> list[tf.Tensor]:
        """Returns a discriminator's loss and its accuracy on real and fake images."""
        real_logits, fake_logits = tf.split(d(tf.concat([real, fake], 0)), 2)
        loss = 0.5 * (mean_square(real_logits - 1.0) + mean_square(fake_logits))
        right = [tf.reduce_mean(tf.cast(x, tf.float32)) for x in (real_logits > 0.5, fake_logits < 0.5)]
        return [loss, *right]


def kernel(shape: list[int]) -> tf.Variable:
    return tf.Variable(tf.random.normal(shape, stddev=0.02))


def scale_and_offset(channels: int) -> tuple[tf.Variable, tf.Variable]:
    return tf.Variable(tf.ones([channels])), tf.Variable(tf.zeros([channels]))


def reflected(x: tf.Tensor, n: int) -> tf.Tensor:
    return tf.pad(x, [[0, 0], [n, n], [n, n], [0, 0]], "REFLECT")


def convolved(x: tf.Tensor, w: tf.Variable, *, stride: int = 1, padding: int = 0) -> tf.Tensor:
    return tf.nn.conv2d(x, w, stride, [[0, 0], [padding, padding], [padding, padding], [0, 0]])


def instance_norm(x: tf.Tensor, scale: tf.Variable, offset: tf.Variable) -> tf.Tensor:
    mean, variance = tf.nn.moments(x, [1, 2], keepdims=True)
    return tf.nn.batch_normalization(x, mean, variance, offset, scale, 1e-6)


def mean_square(x: tf.Tensor) -> tf.Tensor:
    return tf.reduce_mean(tf.square(x))


def distance(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    return tf.reduce_mean(tf.abs(x - y))
