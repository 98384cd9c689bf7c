"""SimCLR (Chen, Kornblith, Norouzi and Hinton, 2020): unsupervised learning of features shared by views of an image.

Two random views of each image go through the encoder and a projection. The loss compares all views of the batch, on all
replicas: an image's two views must be most similar. Afterwards only the encoder is used.
"""

from collections.abc import Mapping, Sequence

import gin
import tensorflow as tf

from core import initializers, layers, losses
from core.arguments import check_finite, check_positive
from core.data.augment import affine, random_affine
from core.module import Module
from core.optimizers import Transform
from core.random import Rng
from core.task import Batch, Feature, Image, Loss, Served, Task, Update, all_rows, own_rows


class Encoder(Module):
    """Maps images to features [rows, features]: convolutions, each followed by a halving, then a mean over space."""

    def __init__(self, in_channels: int, channels: Sequence[int], *, rng: Rng):
        super().__init__()
        self.convolutions, self.norms = [], []
        for i, out_channels in enumerate(channels):
            he = initializers.he_normal()
            conv = layers.Conv2D(in_channels, out_channels, 3, stride=1 if i == 0 else 2, rng=rng.fold(i), w_init=he)
            self.convolutions.append(conv)
            self.norms.append(layers.GroupNorm(out_channels, 8))
            in_channels = out_channels

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        for conv, norm in zip(self.convolutions, self.norms, strict=True):
            x = tf.nn.gelu(norm(conv(x)))
        return layers.global_average_pool(x)


class Projection(Module):
    """Maps features to the vectors that the loss compares. It is unused after training."""

    def __init__(self, in_size: int, hidden: int, size: int, *, rng: Rng):
        super().__init__()
        self.hidden = layers.Linear(in_size, hidden, rng=rng.fold("hidden"), w_init=initializers.he_normal())
        self.last = layers.Linear(hidden, size, rng=rng.fold("last"))

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        return self.last(tf.nn.gelu(self.hidden(x)))


@gin.configurable
class SimClr(Task):
    """Learns features of images. `channels` are the encoder's, and `channels[-1]` is the number of features.

    A view is rotated by up to `turn` radians and shifted by up to `shift` pixels. It is also sheared, and scaled by a
    factor from 1 / `scale` to `scale`.
    """

    def __init__(
        self,
        *,
        rng: Rng,
        image_shape: Sequence[int] = gin.REQUIRED,
        optimizer: Transform = gin.REQUIRED,
        channels: Sequence[int] = (32, 64, 128),
        hidden: int = 128,
        projection: int = 64,
        temperature: float = 0.5,
        turn: float = 0.35,
        shear: float = 0.3,
        scale: float = 1.25,
        shift: float = 1.0,
    ):
        super().__init__()
        self.image_shape, self.optimizer, self.temperature = tuple(image_shape), optimizer, temperature
        check_positive(temperature=temperature, scale=scale)
        check_finite(turn=turn, shear=shear, shift=shift)
        self.strengths = {"turn": turn, "shear": shear, "scale": scale, "shift": shift}
        self.encoder = Encoder(image_shape[-1], channels, rng=rng.fold("encoder"))
        self.projection = Projection(channels[-1], hidden, projection, rng=rng.fold("projection"))

    def phases(self) -> list[Update]:
        trains = [self.encoder, self.projection]
        return [Update("net", loss=self.loss, trains=trains, optimizer=self.optimizer, mixes_rows=True)]

    def loss(self, batch: Batch, rng: Rng) -> Loss:
        """Returns the NT-Xent loss of two random views, and how often a view is most similar to its partner."""
        views = [random_affine(batch["image"], rng.fold(name), **self.strengths) for name in ("one", "other")]
        return self._contrast(*views)

    def evaluate(self, batch: Batch) -> Loss:
        """Returns the same metrics as `loss`. The views are the image, and the image turned by half of `turn`."""
        image = batch["image"]
        return self._contrast(image, affine(image, turn=tf.fill(tf.shape(image)[:1], 0.5 * self.strengths["turn"])))

    def features(self, batch: Batch) -> tf.Tensor:
        """Returns the encoder's features [rows, features] of `batch["image"]`, without augmentation."""
        return self.encoder(batch["image"])

    def serve(self, features: Mapping[str, tf.TensorSpec]) -> dict[str, Served]:
        return {"encode": Served(lambda batch: {"features": self.features(batch)}, {"image": features["image"]})}

    def reads(self) -> dict[str, Feature]:
        return {"image": Image(self.image_shape)}

    def _contrast(self, one: tf.Tensor, other: tf.Tensor) -> Loss:
        projected = self.projection(self.encoder(tf.concat([one, other], axis=0)))
        one, other = tf.split(tf.cast(projected, tf.float32), 2)  # compared in float32: half precision has many ties
        others = all_rows(tf.math.l2_normalize(other, axis=-1))
        nearest = tf.argmax(tf.matmul(one, others, transpose_b=True), axis=-1, output_type=tf.int32)
        found = tf.equal(nearest, own_rows(tf.range(tf.shape(others)[0])))
        loss = losses.nt_xent(one, other, temperature=self.temperature)
        return Loss(loss, metrics={"found": tf.cast(found, tf.float32)})
