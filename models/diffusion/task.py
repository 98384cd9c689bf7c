"""A diffusion model with any formulation, network and sampler.

    Diffusion.formulation = @Edm()     # or @RectifiedFlow(), @VPrediction()
    Diffusion.network = @unet          # or your own: a function of image_shape, num_classes and rng
    Diffusion.sampler = @heun          # or @euler, @ddim

A network maps noisy images, the formulation's `c_noise` [rows] and classes [rows] (or None) to images.
"""

from collections.abc import Callable, Mapping, Sequence

import gin
import tensorflow as tf

from core.arguments import check_finite, check_fraction, check_size
from core.module import Module
from core.optimizers import Transform
from core.random import Rng
from core.task import Batch, Feature, Image, Label, Loss, Served, Task, Update
from models.diffusion.denoiser import Formulation, Network, denoised, mixed
from models.diffusion.guidance import guided, labels_dropped
from models.diffusion.samplers import Sampler, heun

TIMES = 8  # in evaluation, each with its own noise: the same for all examples


@gin.configurable
class Diffusion(Task):
    """Learns to generate images like the source's images, which are in [0, 1].

    With `num_classes`, the network learns images of a class, and with probability `label_dropout` images of any class.
    Samples then follow `guidance` times the difference between the two: 1 is no guidance.
    """

    def __init__(
        self,
        *,
        rng: Rng,
        image_shape: Sequence[int] = gin.REQUIRED,
        formulation: Formulation = gin.REQUIRED,
        network: Callable[..., Module] = gin.REQUIRED,
        optimizer: Transform = gin.REQUIRED,
        sampler: Sampler = heun,
        sample_steps: int = 18,
        num_classes: int | None = None,
        label_dropout: float = 0.1,
        guidance: float = 1.0,
    ):
        super().__init__()
        check_size(sample_steps=sample_steps)
        check_fraction(label_dropout=label_dropout)
        check_finite(guidance=guidance)
        if guidance != 1.0 and (num_classes is None or not label_dropout):
            raise ValueError(
                f"`Diffusion.guidance` is {guidance}, with `num_classes` {num_classes} and `label_dropout` "
                f"{label_dropout}; it compares images of a class with images of any class: give `num_classes`, and a "
                "`label_dropout` such as 0.1."
            )
        self.image_shape, self.formulation, self.optimizer = tuple(image_shape), formulation, optimizer
        self.sampler, self.sample_steps = sampler, sample_steps
        self.num_classes, self.label_dropout, self.guidance = num_classes, label_dropout, guidance
        self.net = network(image_shape=self.image_shape, num_classes=num_classes, rng=rng.fold("net"))

    def phases(self) -> list[Update]:
        return [Update("net", loss=self.loss, trains=self.net, optimizer=self.optimizer)]

    def loss(self, batch: Batch, rng: Rng) -> Loss:
        """Returns the squared error of the network, averaged over pixels, at a random time per example."""
        x = 2.0 * batch["image"] - 1.0
        t = self.formulation.training_times(rng.fold("t"), x.shape[0])
        noise = rng.fold("noise").rows.normal(*x.shape)
        label = self._label(batch)
        if label is not None and self.label_dropout:
            label = labels_dropped(label, rng.fold("label"), rate=self.label_dropout, none=self._none)
        return Loss(self._error(x, t, noise, label))

    def evaluate(self, batch: Batch) -> Loss:
        """Returns the error of `loss` as a mean over a few fixed times. Every example gets the same noise."""
        x, rng = 2.0 * batch["image"] - 1.0, Rng.from_seed(0).fold("evaluate").wide
        t, noise = self.formulation.training_times(rng.fold("t"), TIMES), rng.normal([TIMES, *self.image_shape])
        rows, label = tf.shape(x)[0], self._label(batch)
        if label is not None:
            label = tf.repeat(label, TIMES, 0)
        error = self._error(tf.repeat(x, TIMES, 0), tf.tile(t, [rows]), tf.tile(noise, [rows, 1, 1, 1]), label)
        return Loss(tf.reduce_mean(tf.reshape(error, [rows, TIMES]), 1))

    def sample(self, rng: Rng, n: int) -> Batch:
        """Returns `image` [n, height, width, channels] in [-1, 1]; with classes, also `label`: each class in turn."""
        noise = {"noise": rng.fold("sample").normal([n, *self.image_shape])}
        if self.num_classes is None:
            return self.generate(noise)
        label = rng.rows.numbers(n) % self.num_classes
        return {**self.generate({**noise, "label": label}), "label": label}

    def serve(self, features: Mapping[str, tf.TensorSpec]) -> dict[str, Served]:
        inputs = {"noise": tf.TensorSpec([None, *self.image_shape])}
        if self.num_classes is not None:
            inputs["label"] = features["label"]
        return {"generate": Served(self.generate, inputs, examples=self._with_noise)}

    def generate(self, batch: Batch) -> Batch:
        """Turns `batch["noise"]`, and with classes `batch["label"]`, into images.

        The images are float32. The network computes in the dtype of the noise.
        """
        noise, label = batch["noise"], self._label(batch)
        network = self._network(noise.dtype, label)
        unguided = None if self.guidance == 1.0 else self._network(noise.dtype, tf.fill(tf.shape(label), self._none))

        def denoise(x: tf.Tensor, t: tf.Tensor) -> tf.Tensor:
            c = self.formulation.coefficients(t)
            clean = denoised(c, network, x)
            if unguided is not None:
                clean = guided(clean, denoised(c, unguided, x), self.guidance)
            return tf.clip_by_value(clean, -1.0, 1.0)

        times = self.formulation.sampling_times(self.sample_steps)
        x = self.formulation.coefficients(times[0]).noise * tf.cast(noise, tf.float32)
        return {"image": self.sampler(self.formulation, denoise, x, times)}

    def reads(self) -> dict[str, Feature]:
        image = Image(self.image_shape, low=0.0, high=1.0)
        if self.num_classes is None:
            return {"image": image}
        return {"image": image, "label": Label(self.num_classes, setting="num_classes")}

    def _error(self, x: tf.Tensor, t: tf.Tensor, noise: tf.Tensor, label: tf.Tensor | None) -> tf.Tensor:
        network, x, noise = self._network(x.dtype, label), tf.cast(x, tf.float32), tf.cast(noise, tf.float32)
        t = tf.reshape(t, [-1, 1, 1, 1])
        c = self.formulation.coefficients(t)
        found = network(c.c_in * mixed(c, x, noise), c.c_noise)
        return tf.reduce_mean(tf.square(found - self.formulation.target(t, x, noise)), axis=[1, 2, 3])

    def _network(self, dtype: tf.DType, label: tf.Tensor | None) -> Network:
        """Returns the network for images of these classes: it computes in `dtype`, and takes and returns float32."""

        def network(x: tf.Tensor, time: tf.Tensor) -> tf.Tensor:
            times = tf.broadcast_to(tf.reshape(time, [-1]), tf.shape(x)[:1])
            return tf.cast(self.net(tf.cast(x, dtype), times, label), tf.float32)

        return network

    def _label(self, batch: Batch) -> tf.Tensor | None:
        return None if self.num_classes is None else batch["label"]

    @property
    def _none(self) -> int:
        """Returns the class that stands for any class."""
        assert self.num_classes is not None
        return self.num_classes

    def _with_noise(self, batch: Batch) -> Batch:
        return {**batch, "noise": Rng.from_seed(0).normal(batch["image"].shape)}
