"""VQ-VAE (van den Oord et al., 2017): an autoencoder whose latents are a small grid of codes for each image.

    VqVae.quantizer = @vector_quantizer   # a trained code; or FSQ's fixed one: @scalar_quantizer

A model of the codes, such as a language model, can then generate images: `encode` and `decode` are exported.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence

import gin
import tensorflow as tf

from core import initializers, layers, metrics
from core.arguments import check_size
from core.module import Module
from core.optimizers import Transform
from core.random import Rng
from core.task import Batch, Feature, Image, Loss, Served, Task, Update
from models.quantizers import Quantizer


def residual(channels: int, *, rng: Rng) -> layers.Residual:
    """Returns the paper's block: ReLU, a 3x3 convolution, ReLU, a 1x1 convolution."""
    he = initializers.he_normal()
    inner = layers.Conv2D(channels, channels, 3, rng=rng.fold("inner"), w_init=he)
    outer = layers.Conv2D(channels, channels, 1, rng=rng.fold("outer"), w_init=he)
    return layers.Residual(layers.Sequential([tf.nn.relu, inner, tf.nn.relu, outer]))


class Encoder(Module):
    """Maps images to a grid of vectors [rows, height, width, size]; each of `channels` halves both sides."""

    def __init__(self, in_channels: int, channels: Sequence[int], size: int, *, rng: Rng):
        super().__init__()
        he, widths = initializers.he_normal(), [in_channels, *channels]
        self.halvings = [
            layers.Conv2D(before, after, 4, stride=2, rng=rng.fold("halvings").fold(i), w_init=he)
            for i, (before, after) in enumerate(itertools.pairwise(widths))
        ]
        self.block = residual(channels[-1], rng=rng.fold("block"))
        self.last = layers.Conv2D(channels[-1], size, 1, rng=rng.fold("last"))

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        for i, halving in enumerate(self.halvings):
            x = halving(tf.nn.relu(x) if i else x)
        return self.last(tf.nn.relu(self.block(x)))


class Decoder(Module):
    """Maps a grid of vectors to images: the encoder backwards."""

    def __init__(self, out_channels: int, channels: Sequence[int], size: int, *, rng: Rng):
        super().__init__()
        he, widths = initializers.he_normal(), [*reversed(channels), out_channels]
        self.first = layers.Conv2D(size, widths[0], 3, rng=rng.fold("first"), w_init=he)
        self.block = residual(widths[0], rng=rng.fold("block"))
        self.doublings = [
            layers.ConvTranspose2D(before, after, 4, stride=2, rng=rng.fold("doublings").fold(i), w_init=he)
            for i, (before, after) in enumerate(itertools.pairwise(widths))
        ]

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        x = self.block(self.first(x))
        for doubling in self.doublings:
            x = doubling(tf.nn.relu(x))
        return x


@gin.configurable
class VqVae(Task):
    """Learns to describe images in [0, 1] by codes, and to reconstruct them; each of `channels` halves the grid.

    The code's vectors follow gradients, not moving averages: so they are right over replicas and microbatches.
    """

    def __init__(
        self,
        *,
        rng: Rng,
        image_shape: Sequence[int] = gin.REQUIRED,
        quantizer: Callable[..., Quantizer] = gin.REQUIRED,
        optimizer: Transform = gin.REQUIRED,
        channels: Sequence[int] = (64,),
    ):
        super().__init__()
        *space, depth = image_shape
        check_size(**{f"channels[{i}]": count for i, count in enumerate(channels)})
        factor = 2 ** len(channels)
        if not channels or any(side % factor for side in space):
            raise ValueError(
                f"`VqVae.channels` is {list(channels)} for images of {list(image_shape)}; each number halves "
                "height and width: give at least one, and no more than divide them."
            )
        self.image_shape, self.optimizer = tuple(image_shape), optimizer
        self.grid = [side // factor for side in space]
        self.quantizer = quantizer(rng=rng.fold("quantizer"))
        self.encoder = Encoder(depth, channels, self.quantizer.size, rng=rng.fold("encoder"))
        self.decoder = Decoder(depth, channels, self.quantizer.size, rng=rng.fold("decoder"))

    def phases(self) -> list[Update]:
        trains = [self.encoder, self.quantizer, self.decoder]
        return [Update("net", loss=self.loss, trains=trains, optimizer=self.optimizer)]

    def loss(self, batch: Batch, rng: Rng | None) -> Loss:
        """Returns the squared error of a pixel plus the quantiser's loss of a vector; `codes` are those in use."""
        latent = self.encoder(2.0 * batch["image"] - 1.0)
        vectors, codes = self.quantizer(latent)
        error = tf.reduce_mean(tf.square(self.decoded(vectors) - tf.cast(batch["image"], tf.float32)), axis=[1, 2, 3])
        apart = tf.reduce_mean(self.quantizer.loss(latent), axis=[1, 2])
        use = metrics.CodeUsage.of(codes, self.quantizer.num_codes)
        return Loss(error + apart, metrics={"error": error, "codes": use})

    def evaluate(self, batch: Batch) -> Loss:
        return self.loss(batch, rng=None)

    def serve(self, features: Mapping[str, tf.TensorSpec]) -> dict[str, Served]:
        codes = tf.TensorSpec([None, *self.grid], tf.int32)
        return {
            "encode": Served(self.encode, {"image": features["image"]}),
            "decode": Served(self.decode, {"codes": codes}, examples=self.encode),
        }

    def encode(self, batch: Batch) -> Batch:
        """Returns the codes of `batch["image"]`: int32 [rows, height, width]."""
        return {"codes": self.quantizer(self.encoder(2.0 * batch["image"] - 1.0)).codes}

    def decode(self, batch: Batch) -> Batch:
        """Returns the image of `batch["codes"]`, in [-1, 1]."""
        logits = tf.cast(self.decoder(self.quantizer.entries(batch["codes"])), tf.float32)
        return {"image": tf.tanh(0.5 * logits)}  # 2 sigmoid(x) - 1 loses the digits of an image near 0

    def reconstruct(self, batch: Batch) -> Batch:
        """Returns `image` and `reconstructed`, both in [-1, 1]."""
        return {"image": 2.0 * batch["image"] - 1.0, "reconstructed": self.decode(self.encode(batch))["image"]}

    def reads(self) -> dict[str, Feature]:
        return {"image": Image(self.image_shape, low=0.0, high=1.0)}

    def decoded(self, vectors: tf.Tensor) -> tf.Tensor:
        """Returns images in [0, 1] of a grid of vectors [rows, height, width, size]: float32."""
        return tf.sigmoid(tf.cast(self.decoder(vectors), tf.float32))
