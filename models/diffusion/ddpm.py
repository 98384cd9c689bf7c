"""Denoising diffusion (Ho, Jain and Abbeel, 2020): a network learns to predict the noise in an image.

Sampling starts from noise and removes the predicted noise step by step. Unlike a GAN, the task has a single `Update`.
"""

from collections.abc import Mapping, Sequence

import gin
import tensorflow as tf

from core import layers
from core.module import Module
from core.optimizers import Transform
from core.random import Rng
from core.task import Batch, Feature, Image, Loss, Served, Task, Update
from models.diffusion.waves import waves

LEVELS = 8  # noise levels in evaluation


class Block(Module):
    """A residual block of two convolutions. Between them, it adds a function of the noise level to the channels."""

    def __init__(self, in_channels: int, channels: int, *, time_size: int, rng: Rng):
        super().__init__()
        self.norm_1 = layers.GroupNorm(in_channels, 8)
        self.conv_1 = layers.Conv2D(in_channels, channels, 3, rng=rng.fold("conv_1"))
        self.time = layers.Linear(time_size, channels, rng=rng.fold("time"))
        self.norm_2 = layers.GroupNorm(channels, 8)
        self.conv_2 = layers.Conv2D(channels, channels, 3, rng=rng.fold("conv_2"))
        self.shortcut = layers.Conv2D(in_channels, channels, 1, rng=rng.fold("shortcut"))

    def __call__(self, x: tf.Tensor, time: tf.Tensor) -> tf.Tensor:
        h = self.conv_1(tf.nn.silu(self.norm_1(x)))
        h += tf.expand_dims(tf.expand_dims(self.time(time), 1), 1)
        h = self.conv_2(tf.nn.silu(self.norm_2(h)))
        return h + self.shortcut(x)


class NoiseNet(Module):
    """Predicts the noise in `x` at step t, ε_θ(x, t), with a small U-Net (Ronneberger et al., 2015) of two sizes."""

    def __init__(self, image_shape: Sequence[int], *, channels: int, rng: Rng):
        super().__init__()
        self.channels = channels
        time_size, depth = 4 * channels, image_shape[-1]
        self.time_1 = layers.Linear(channels, time_size, rng=rng.fold("time_1"))
        self.time_2 = layers.Linear(time_size, time_size, rng=rng.fold("time_2"))
        self.first = layers.Conv2D(depth, channels, 3, rng=rng.fold("first"))
        self.down = Block(channels, channels, time_size=time_size, rng=rng.fold("down"))
        self.halve = layers.Conv2D(channels, 2 * channels, 3, stride=2, rng=rng.fold("halve"))
        self.middle = Block(2 * channels, 2 * channels, time_size=time_size, rng=rng.fold("middle"))
        self.double = layers.Resize(scale=2, method="nearest")
        self.up = Block(3 * channels, channels, time_size=time_size, rng=rng.fold("up"))
        self.norm = layers.GroupNorm(channels, 8)
        self.last = layers.Conv2D(channels, depth, 3, rng=rng.fold("last"))

    def __call__(self, x: tf.Tensor, t: tf.Tensor) -> tf.Tensor:
        time = tf.nn.silu(self.time_2(tf.nn.silu(self.time_1(tf.cast(waves(t, self.channels), x.dtype)))))
        wide = self.down(self.first(x), time)
        narrow = self.middle(self.halve(wide), time)
        x = self.up(tf.concat([self.double(narrow), wide], -1), time)
        return self.last(tf.nn.silu(self.norm(x)))


@gin.configurable
class Ddpm(Task):
    """Learns to generate images like the source's images, which are in [0, 1].

    `noise_steps` is the paper's T, with linearly growing variances. Sampling uses only `sample_steps` of these steps
    (DDIM: Song, Meng and Ermon, 2021).
    """

    def __init__(
        self,
        *,
        rng: Rng,
        image_shape: Sequence[int] = gin.REQUIRED,
        optimizer: Transform = gin.REQUIRED,
        channels: int = 32,
        noise_steps: int = 1000,
        sample_steps: int = 50,
    ):
        super().__init__()
        if len(image_shape) != 3 or image_shape[0] % 2 or image_shape[1] % 2:
            raise ValueError(f"`Ddpm.image_shape` is {list(image_shape)}; give [height, width, channels], even sizes.")
        if channels % 8 or channels < 8:
            raise ValueError(f"`Ddpm.channels` is {channels}; they are normalised in groups: give a multiple of 8.")
        if not 1 <= sample_steps <= noise_steps:
            raise ValueError(f"`Ddpm.sample_steps` is {sample_steps}; give 1 to `noise_steps` = {noise_steps}.")
        self.image_shape, self.optimizer = tuple(image_shape), optimizer
        self.noise_steps, self.sample_steps = noise_steps, sample_steps
        self.net = NoiseNet(image_shape, channels=channels, rng=rng.fold("net"))

    def phases(self) -> list[Update]:
        return [Update("net", loss=self.loss, trains=self.net, optimizer=self.optimizer)]

    def loss(self, batch: Batch, rng: Rng) -> Loss:
        """Returns the mean of (ε − ε_θ(x_t, t))² over pixels, with a random step t per example (algorithm 1)."""
        x = 2.0 * batch["image"] - 1.0
        rows = x.shape[0]
        t = tf.cast(rng.fold("t").wide.rows.uniform(rows) * self.noise_steps, tf.int32)
        return Loss(self._error(x, t, rng.fold("noise").rows.normal(rows, *x.shape[1:])))

    def evaluate(self, batch: Batch) -> Loss:
        """Returns the error of `loss` as a mean over a few fixed steps. Every example gets the same noise."""
        x = 2.0 * batch["image"] - 1.0
        noise = Rng.from_seed(0).fold("evaluate").normal([LEVELS, *self.image_shape])
        # In a graph, all levels share one trace. The operations, and so the results, are those of separate traces.
        error = self._error if tf.executing_eagerly() else tf.function(self._error, autograph=False)
        errors = []
        for level in range(LEVELS):
            t = tf.fill(tf.shape(x)[:1], (2 * level + 1) * self.noise_steps // (2 * LEVELS))
            errors.append(error(x, t, tf.broadcast_to(noise[level], tf.shape(x))))
        return Loss(tf.add_n(errors) / LEVELS)

    def sample(self, rng: Rng, n: int) -> Batch:
        """Returns `{"image": [n, height, width, channels]}` in [-1, 1], generated from random noise."""
        return self.generate({"noise": rng.fold("sample").normal([n, *self.image_shape])})

    def serve(self, features: Mapping[str, tf.TensorSpec]) -> dict[str, Served]:
        noise = tf.TensorSpec([None, *self.image_shape])
        return {"generate": Served(self.generate, {"noise": noise}, examples=self._with_noise)}

    def generate(self, batch: Batch) -> Batch:
        """Turns `batch["noise"]` into images with DDIM: each step moves towards the image that ε_θ predicts.

        The images are float32. The network computes in the dtype of the noise.
        """
        dtype = batch["noise"].dtype
        steps = [i * self.noise_steps // self.sample_steps for i in range(self.sample_steps)]
        alpha_bar = tf.gather(self.alpha_bar(), steps)
        before = tf.concat([[1.0], alpha_bar[:-1]], 0)

        def body(i: tf.Tensor, x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            a, b = alpha_bar[i], before[i]
            noise = tf.cast(self.net(tf.cast(x, dtype), tf.fill(tf.shape(x)[:1], tf.gather(steps, i))), tf.float32)
            image = tf.clip_by_value((x - tf.sqrt(1.0 - a) * noise) / tf.sqrt(a), -1.0, 1.0)
            noise = (x - tf.sqrt(a) * image) / tf.sqrt(1.0 - a)  # relative to the clipped image
            return i - 1, tf.sqrt(b) * image + tf.sqrt(1.0 - b) * noise

        start = (tf.constant(self.sample_steps - 1), tf.cast(batch["noise"], tf.float32))
        return {"image": tf.while_loop(lambda i, _: i >= 0, body, start)[1]}

    def _with_noise(self, batch: Batch) -> Batch:
        return {"noise": Rng.from_seed(0).normal(batch["image"].shape)}

    def reads(self) -> dict[str, Feature]:
        return {"image": Image(self.image_shape, low=0.0, high=1.0)}

    def _error(self, x: tf.Tensor, t: tf.Tensor, noise: tf.Tensor) -> tf.Tensor:
        dtype, x, noise = x.dtype, tf.cast(x, tf.float32), tf.cast(noise, tf.float32)
        a = tf.reshape(tf.gather(self.alpha_bar(), t), [-1, 1, 1, 1])
        seen = self.net(tf.cast(tf.sqrt(a) * x + tf.sqrt(1.0 - a) * noise, dtype), t)
        return tf.reduce_mean(tf.square(noise - tf.cast(seen, tf.float32)), axis=[1, 2, 3])

    def alpha_bar(self) -> tf.Tensor:
        """Returns ᾱ [noise_steps], the share of the image's variance that is left at each step."""
        scale = 1000.0 / self.noise_steps
        beta = tf.linspace(scale * 1e-4, min(scale * 0.02, 0.999), self.noise_steps)
        return tf.cast(tf.math.cumprod(1.0 - tf.cast(beta, tf.float64)), tf.float32)
