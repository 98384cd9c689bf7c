"""pix2pix (Isola et al., 2017): translation learnt from pairs of images.

    G: a, noise → b, with dropout as the noise; D judges pairs, (a, b) against (a, G(a)), patch by patch;
    an L1 distance to the true b is added, because D alone would accept any plausible one.

A step has one update of the generator, then one update of the discriminator on the same fakes.
"""

from collections.abc import Sequence

import gin
import tensorflow as tf

from core.arguments import check_fraction, check_not_negative
from core.losses.adversarial import non_saturating
from core.optimizers import Transform
from core.random import Rng
from core.task import Batch, Loss, Phase, Update
from models.translation.patch_gan import PatchGan
from models.translation.task import Ratio, Translation, mean_distance
from models.translation.unet import UNetGenerator


@gin.configurable
class Pix2Pix(Translation):
    """Trains on pairs of images `a` and `b` of `image_shape` (height, width, channels), in [-1, 1].

    The defaults are the paper's, for 256 by 256 pixels. `crop_and_flip` crops larger images to `image_shape`, with the
    same crop for both images of a pair. The generator halves an image once for each of `generator_channels`.
    """

    def __init__(
        self,
        *,
        rng: Rng,
        image_shape: Sequence[int] = gin.REQUIRED,
        generator_channels: Sequence[int] = (64, 128, 256, 512, 512, 512, 512, 512),
        discriminator_channels: Sequence[int] = (64, 128, 256, 512),
        dropout: float = 0.5,
        l1_weight: float = 100.0,
        crop_and_flip: bool = False,
        g_optimizer: Transform = gin.REQUIRED,
        d_optimizer: Transform = gin.REQUIRED,
    ):
        depth = len(generator_channels)
        why = f"the generator halves it {depth} times, once for each of `generator_channels`"
        super().__init__(image_shape, multiple=2**depth, why=why, crop_and_flip=crop_and_flip, paired=True)
        check_not_negative(l1_weight=l1_weight)
        check_fraction(dropout=dropout)
        self.l1_weight = l1_weight
        self.g_optimizer, self.d_optimizer = g_optimizer, d_optimizer
        self.game = non_saturating()
        channels = image_shape[-1]
        self.g = UNetGenerator(channels, channels, channels=generator_channels, dropout=dropout, rng=rng.fold("g"))
        self.d = PatchGan(2 * channels, channels=discriminator_channels, rng=rng.fold("d"))
        self.d.check_size("Pix2Pix", image_shape)

    def phases(self) -> list[Phase]:
        """Lists the update of the generator, then the update of the discriminator on the same fakes."""
        return [
            *self.crops(),
            Update("g", loss=self.g_loss, trains=self.g, optimizer=self.g_optimizer),
            Update("d", loss=self.d_loss, trains=self.d, optimizer=self.d_optimizer),
        ]

    def g_loss(self, batch: Batch, rng: Rng) -> Loss:
        """Returns −log D(a, G(a)) + λ |b − G(a)|, and the fakes as outputs."""
        a, b = self.images(batch)
        fake = self.g(a, rng)
        adversarial = self.game.generator(self.d(tf.concat([a, fake], -1)))
        distance = mean_distance(fake, b)
        return Loss(
            adversarial + self.l1_weight * distance,
            metrics={"adversarial": adversarial, "distance": distance},
            outputs={"fake_b": fake},
        )

    def d_loss(self, batch: Batch, rng: Rng) -> Loss:
        """Returns (−log D(a, b) − log(1 − D(a, G(a)))) / 2; the paper halves it to slow the discriminator down."""
        a, b = self.images(batch)
        pairs = tf.concat([tf.concat([a, b], -1), tf.concat([a, batch["fake_b"]], -1)], 0)
        real_logits, fake_logits = tf.split(self.d(pairs), 2)
        metrics = self.game.accuracy(real_logits, fake_logits)
        return Loss(0.5 * self.game.discriminator(real_logits, fake_logits), metrics=metrics)

    def translate(self, image: tf.Tensor) -> tf.Tensor:
        """Returns G(image) without dropout, so that a translation is reproducible."""
        return self.g(image)

    def evaluate(self, batch: Batch) -> Loss:
        """Returns the mean absolute error of the translation of `a`, and of `a` itself, each compared with `b`."""
        a, b = self.held_out(batch)
        error, nothing = mean_distance(self.g(a), b), mean_distance(a, b)
        return Loss(error, metrics={"error_ab": error, "identity_error": nothing, "ratio_ab": Ratio.of(error, nothing)})
