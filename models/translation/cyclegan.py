"""CycleGAN (Zhu et al., 2017): translation between two image domains without known pairs.

    G: a → b and F: b → a, each against a discriminator of its target domain, with least squares;
    cycle consistency: F(G(a)) ≈ a and G(F(b)) ≈ b;
    identity: G(b) ≈ b and F(a) ≈ a, which preserves colours.

A step updates both generators together, then each discriminator. Discriminators get the same fakes through an
`ImagePool`. In the code, G is `g_ab`, F is `g_ba`, and `d_a` judges images of domain a.
"""

import functools
from collections.abc import Mapping, Sequence

import gin
import tensorflow as tf

from core.arguments import check_not_negative
from core.errors import ConfigurationError
from core.losses.adversarial import least_squares
from core.optimizers import Transform
from core.random import Rng
from core.task import Batch, Loss, Phase, Served, Update
from models.translation.image_pool import ImagePool
from models.translation.patch_gan import PatchGan
from models.translation.resnet import ResNetGenerator
from models.translation.task import Ratio, Translation, mean_distance


@gin.configurable
class CycleGan(Translation):
    """Trains on images `a` and `b` of `image_shape` (height, width, channels), in [-1, 1]; rows needn't be pairs.

    The defaults are the paper's, for 256 by 256 pixels. `crop_and_flip` crops larger images to `image_shape`. With
    `paired_evaluation`, rows of the evaluation source are pairs, and translations of `a` are compared with `b`.
    """

    def __init__(
        self,
        *,
        rng: Rng,
        image_shape: Sequence[int] = gin.REQUIRED,
        width: int = 64,
        blocks: int = 9,
        discriminator_channels: Sequence[int] = (64, 128, 256, 512),
        cycle_weight: float = 10.0,
        identity_weight: float = 5.0,
        pool_size: int = 50,
        crop_and_flip: bool = False,
        paired_evaluation: bool = False,
        g_optimizer: Transform = gin.REQUIRED,
        d_optimizer: Transform = gin.REQUIRED,
    ):
        why = "the generators halve it twice"
        super().__init__(image_shape, multiple=4, why=why, crop_and_flip=crop_and_flip, paired=False)
        if pool_size < 0:
            raise ConfigurationError(
                f"`CycleGan.pool_size` is {pool_size}; it counts images: give 0 for no history, or the paper's 50."
            )
        check_not_negative(cycle_weight=cycle_weight, identity_weight=identity_weight)
        self.cycle_weight, self.identity_weight = cycle_weight, identity_weight
        self.paired_evaluation = paired_evaluation
        self.g_optimizer, self.d_optimizer = g_optimizer, d_optimizer
        self.game = least_squares()
        channels = image_shape[-1]
        self.g_ab = ResNetGenerator(channels, width=width, blocks=blocks, rng=rng.fold("g_ab"))
        self.g_ba = ResNetGenerator(channels, width=width, blocks=blocks, rng=rng.fold("g_ba"))
        self.d_a = PatchGan(channels, channels=discriminator_channels, rng=rng.fold("d_a"))
        self.d_b = PatchGan(channels, channels=discriminator_channels, rng=rng.fold("d_b"))
        self.d_a.check_size("CycleGan", image_shape)
        self.pool_a, self.pool_b = (ImagePool(pool_size, image_shape) for _ in range(2))
        self.one_device = ("pool_a", "pool_b") if pool_size else ()

    def phases(self) -> list[Phase]:
        """Lists the update of both generators, the phases of the image pools, and each discriminator's update."""
        generators = [self.g_ab, self.g_ba]
        histories: list[Phase] = []
        discriminators: list[Phase] = []
        for domain, pool, d in (("a", self.pool_a, self.d_a), ("b", self.pool_b, self.d_b)):
            histories.append(pool.phase(f"pool_{domain}", f"fake_{domain}", f"shown_{domain}"))
            loss = functools.partial(self.discriminator_loss, d, domain)
            discriminators.append(Update(f"d_{domain}", loss=loss, trains=d, optimizer=self.d_optimizer))
        return [
            *self.crops(),
            Update("generators", loss=self.generator_loss, trains=generators, optimizer=self.g_optimizer),
            *histories,
            *discriminators,
        ]

    def generator_loss(self, batch: Batch, rng: Rng) -> Loss:
        """Returns L_GAN(G) + L_GAN(F) + λ L_cyc + λ_identity L_identity, and the fakes as outputs."""
        a, b = self.images(batch)
        metrics: dict[str, tf.Tensor] = {}
        if self.identity_weight:
            # One pass for both inputs of a generator: instance norm treats each image separately.
            fake_b, same_b = tf.split(self.g_ab(tf.concat([a, b], 0)), 2)
            fake_a, same_a = tf.split(self.g_ba(tf.concat([b, a], 0)), 2)
            metrics["identity"] = mean_distance(same_a, a) + mean_distance(same_b, b)
        else:
            fake_b, fake_a = self.g_ab(a), self.g_ba(b)
        # The paper's term is (D(G(a)) - 1)², which `least_squares` halves.
        metrics["adversarial"] = 2.0 * (self.game.generator(self.d_a(fake_a)) + self.game.generator(self.d_b(fake_b)))
        metrics["cycle"] = mean_distance(self.g_ba(fake_b), a) + mean_distance(self.g_ab(fake_a), b)
        loss = metrics["adversarial"] + self.cycle_weight * metrics["cycle"]
        if self.identity_weight:
            loss += self.identity_weight * metrics["identity"]
        return Loss(loss, metrics=metrics, outputs={"fake_a": fake_a, "fake_b": fake_b})

    def discriminator_loss(self, d: PatchGan, domain: str, batch: Batch, rng: Rng) -> Loss:
        """Returns ((D(real) − 1)² + D(fake)²) / 2; the paper halves it to slow the discriminator down."""
        real, fake = self.images(batch)["ab".index(domain)], batch[f"shown_{domain}"]
        real_logits, fake_logits = tf.split(d(tf.concat([real, fake], 0)), 2)
        metrics = self.game.accuracy(real_logits, fake_logits)
        return Loss(self.game.discriminator(real_logits, fake_logits), metrics=metrics)

    def translate(self, image: tf.Tensor) -> tf.Tensor:
        """Returns G(image): images of domain a as images of domain b."""
        return self.g_ab(image)

    def serve(self, features: Mapping[str, tf.TensorSpec]) -> dict[str, Served]:
        return {"a_to_b": self.served("a", self.g_ab), "b_to_a": self.served("b", self.g_ba)}

    def evaluate(self, batch: Batch) -> Loss:
        """Returns the cycle error; for pairs, also each translation's error and the error of unchanged images."""
        a, b = self.held_out(batch)
        fake_b, fake_a = self.g_ab(a), self.g_ba(b)
        cycle = mean_distance(self.g_ba(fake_b), a) + mean_distance(self.g_ab(fake_a), b)
        if not self.paired_evaluation:
            return Loss(cycle)
        error_ab, error_ba = mean_distance(fake_b, b), mean_distance(fake_a, a)
        nothing = mean_distance(a, b)
        return Loss(
            error_ab + error_ba,
            metrics={
                "cycle": cycle,
                "error_ab": error_ab,
                "error_ba": error_ba,
                "identity_error": nothing,
                "ratio_ab": Ratio.of(error_ab, nothing),
                "ratio_ba": Ratio.of(error_ba, nothing),
            },
        )
