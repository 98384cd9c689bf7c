"""A variational autoencoder (Kingma and Welling, 2014): images generated from a few normal latents.

The weight of the divergence in the loss grows during the run (Bowman et al., 2016), computed from `rng.progress`.
"""

import math
from collections.abc import Mapping, Sequence

import gin
import tensorflow as tf

from core import losses
from core.optimizers import Transform
from core.random import Rng
from core.task import Batch, Feature, Image, Loss, Served, Task, Update
from models.classifiers.mlp import Mlp

EVALUATION_DRAWS = 16  # of the latent, for each held-out example: the same for all


@gin.configurable
class Vae(Task):
    """Learns to generate images like the source's, in [0, 1]; maximizes a lower bound on their log-probability.

    A pixel is a count from 0 to `levels`. The decoder predicts a binomial distribution of the count. So the bound is on
    the log of a probability (in nats), not of a density. The divergence's weight grows from 0 to 1 during the first
    share `annealed` of the run.
    """

    def __init__(
        self,
        *,
        rng: Rng,
        image_shape: Sequence[int] = gin.REQUIRED,
        levels: int = gin.REQUIRED,
        optimizer: Transform = gin.REQUIRED,
        latent_size: int = 16,
        hidden: Sequence[int] = (256, 256),
        annealed: float = 0.5,
    ):
        super().__init__()
        for name, value in {"levels": levels, "latent_size": latent_size}.items():
            if value < 1:
                raise ValueError(f"`Vae.{name}` is {value}; give 1 or more.")
        if not 0.0 <= annealed <= 1.0:
            raise ValueError(f"`Vae.annealed` is {annealed}; it is a fraction of the run: give 0 to 1.")
        self.image_shape, self.levels, self.optimizer = tuple(image_shape), levels, optimizer
        self.latent_size, self.annealed = latent_size, annealed
        pixels = math.prod(image_shape)
        self.encoder = Mlp([pixels, *hidden, 2 * latent_size], rng=rng.fold("encoder"))
        self.decoder = Mlp([latent_size, *reversed(hidden), pixels], rng=rng.fold("decoder"))

    def phases(self) -> list[Update]:
        return [Update("net", loss=self.loss, trains=[self.encoder, self.decoder], optimizer=self.optimizer)]

    def loss(self, batch: Batch, rng: Rng) -> Loss:
        """Returns −log p(x|z) for a random z of each image, plus the weighted divergence KL(q(z|x) ‖ p(z))."""
        mean, log_std = self.posterior(batch["image"])
        noise = tf.cast(rng.fold("latent").rows.normal(*mean.shape), tf.float32)
        error = -self.log_likelihood(batch["image"], mean + tf.exp(log_std) * noise)
        divergence = divergence_from_normal(mean, log_std)
        weight = tf.minimum(1.0, rng.progress / self.annealed) if self.annealed else 1.0
        return Loss(error + weight * divergence, metrics={"bound": -error - divergence, "divergence": divergence})

    def evaluate(self, batch: Batch) -> Loss:
        """Returns the metric `bound`, E log p(x|z) − KL(q(z|x) ‖ p(z)), from a few draws of z. The loss is `-bound`."""
        image = batch["image"]
        mean, log_std = self.posterior(image)
        noise = Rng.from_seed(0).fold("evaluate").wide.normal([EVALUATION_DRAWS, self.latent_size])
        drawn = [self.log_likelihood(image, mean + tf.exp(log_std) * noise[i]) for i in range(EVALUATION_DRAWS)]
        divergence = divergence_from_normal(mean, log_std)
        bound = tf.add_n(drawn) / EVALUATION_DRAWS - divergence
        return Loss(-bound, metrics={"bound": bound, "divergence": divergence})

    def sample(self, rng: Rng, n: int) -> Batch:
        """Decodes `n` random normal latents. Each pixel is the expected value of its distribution."""
        return {"image": self.expected(rng.fold("latent").normal([n, self.latent_size]))}

    def serve(self, features: Mapping[str, tf.TensorSpec]) -> dict[str, Served]:
        latent = tf.TensorSpec([None, self.latent_size])
        return {
            "encode": Served(self.encode, {"image": features["image"]}),
            "decode": Served(self.decode, {"latent": latent}, examples=lambda x: {"latent": self.encode(x)["mean"]}),
        }

    def encode(self, batch: Batch) -> Batch:
        """Returns the mean and the log standard deviation of q(z|x) for `batch["image"]`: [rows, latent] each."""
        mean, log_std = self.posterior(batch["image"])
        return {"mean": mean, "log_std": log_std}

    def decode(self, batch: Batch) -> Batch:
        """Returns the expected image of each row of `batch["latent"]`."""
        return {"image": self.expected(batch["latent"])}

    def reconstruct(self, batch: Batch) -> Batch:
        """Returns `image` and `reconstructed`, decoded from the mean of the image's latent, both in [-1, 1]."""
        mean, _ = self.posterior(batch["image"])
        image = batch["image"]
        return {"image": 2.0 * image - 1.0, "reconstructed": self.expected(tf.cast(mean, image.dtype))}

    def reads(self) -> dict[str, Feature]:
        return {"image": Image(self.image_shape, low=0.0, high=1.0)}

    def posterior(self, image: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the mean and the log standard deviation of q(z|x) for `image`: float32 [rows, latent] each."""
        mean, log_std = tf.split(tf.cast(self.encoder(2.0 * image - 1.0), tf.float32), 2, axis=-1)
        return mean, log_std

    def log_likelihood(self, image: tf.Tensor, latent: tf.Tensor) -> tf.Tensor:
        """Returns log p(x|z) of each image, with a binomial distribution of `levels` trials per pixel.

        The decoder computes in the dtype of `image`, all else in float32.
        """
        n, lit = float(self.levels), tf.round(tf.cast(image, tf.float32) * self.levels)
        ways = math.lgamma(n + 1.0) - tf.math.lgamma(lit + 1.0) - tf.math.lgamma(n - lit + 1.0)
        logits = tf.reshape(self.decoder(tf.cast(latent, image.dtype)), tf.shape(image))
        return tf.reduce_sum(ways - n * losses.sigmoid_cross_entropy(logits, lit / n), axis=[1, 2, 3])

    def expected(self, latent: tf.Tensor) -> tf.Tensor:
        """Returns the expected image of each row of `latent`, in [-1, 1]."""
        logits = tf.reshape(self.decoder(latent), [-1, *self.image_shape])
        return tf.tanh(0.5 * tf.cast(logits, tf.float32))  # 2 sigmoid(x) - 1, with all digits near 0


def divergence_from_normal(mean: tf.Tensor, log_std: tf.Tensor) -> tf.Tensor:
    """Returns KL(N(mean, exp(log_std)²) ‖ N(0, 1)), summed over the last axis (Kingma and Welling, appendix B)."""
    return 0.5 * tf.reduce_sum(tf.square(mean) + tf.exp(2.0 * log_std) - 1.0 - 2.0 * log_std, axis=-1)
