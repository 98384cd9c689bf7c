"""StyleGAN2 (Karras et al., 2020), with adaptive discriminator augmentation (Karras et al., 2020, "ADA").

A step has two updates. The phase `d` trains the discriminator, on every 16th step with R1. The phase `g` trains the
generator, on every 4th step with the path length. These lazy penalties are as many times stronger, and belong to the
update's loss. So each network has one optimizer, as in the paper, whose rates need no correction.

Two numbers last over steps, as histories: the mean path length (`path_mean`), and the probability of an augmentation
(`adapt`). Each moves once per step, by the global batch. Checkpoints hold both, and every replica has the same.
"""

import functools
from collections.abc import Sequence
from typing import Any

import gin
import tensorflow as tf

from core.arguments import check_fraction, check_not_negative, check_positive, check_size
from core.choice import one_of
from core.errors import ConfigurationError
from core.layers.shapes import widen
from core.losses.adversarial import logits_and_slopes, non_saturating
from core.module import Module
from core.optimizers import Transform
from core.random import Rng
from core.task import Batch, Compute, Loss, Phase, Update
from models.gan.augmentation import Augmentation
from models.gan.style_discriminator import StyleDiscriminator
from models.gan.style_generator import StyleGenerator
from models.gan.task import JURY, Gan

_PATH_DECAY = 0.01  # the share of a new mean length


class Carried(Module):
    """A number that a history phase keeps from step to step."""

    def __init__(self) -> None:
        super().__init__()
        self.value = tf.Variable(0.0, trainable=False, name="value")


@gin.configurable
class StyleGan2(Gan):
    """Learns to generate images like the source's images in [0, 1], which are resized to `image_shape`.

    `channels` are those of each resolution in both networks, from the smallest. `r1` (γ in γ/2 ‖∇D‖²) and
    `path_weight` are the weights of the penalties, computed every `r1_every` and `path_every` steps. With the
    probability `mixing`, an image gets the styles of two latents. `group` images are compared in the discriminator.
    Samples' styles are `truncation` times as far from their mean.

    With an `augmentation`, its probability rises while the mean sign of the real images' logits exceeds
    `augmentation_target`, and else falls. From 0 to 1, it takes `augmentation_images` examples.
    """

    def __init__(
        self,
        *,
        rng: Rng,
        image_shape: Sequence[int] = gin.REQUIRED,
        channels: Sequence[int] = gin.REQUIRED,
        g_optimizer: Transform = gin.REQUIRED,
        d_optimizer: Transform = gin.REQUIRED,
        latent_size: int = 512,
        style_size: int = 512,
        mapping_layers: int = 8,
        group: int = 4,
        r1: float = 10.0,
        r1_every: int = 16,
        path_weight: float = 2.0,
        path_every: int = 4,
        mixing: float = 0.9,
        truncation: float = 1.0,
        augmentation: Augmentation | None = None,
        augmentation_target: float = 0.6,
        augmentation_images: float = 500_000.0,
    ):
        check_size(style_size=style_size, mapping_layers=mapping_layers, group=group)
        check_size(r1_every=r1_every, path_every=path_every)
        check_not_negative(r1=r1, path_weight=path_weight, truncation=truncation)
        check_fraction(mixing=mixing, augmentation_target=augmentation_target)
        check_positive(augmentation_images=augmentation_images)
        super().__init__(
            rng=rng,
            networks=functools.partial(
                _networks, channels=channels, style_size=style_size, mapping_layers=mapping_layers, group=group
            ),
            image_shape=image_shape,
            game=non_saturating(),
            g_optimizer=g_optimizer,
            d_optimizer=d_optimizer,
            latent_size=latent_size,
        )
        self.r1, self.r1_every, self.path_weight, self.path_every = r1, r1_every, path_weight, path_every
        self.mixing, self.truncation, self.augmentation = mixing, truncation, augmentation
        self.target, self.images = augmentation_target, augmentation_images
        if path_weight:
            self.path_mean = Carried()
        if augmentation:
            self.probability = Carried()

    def phases(self) -> list[Phase]:
        """Lists the updates `d` and `g`, and the histories `adapt` and `path_mean` that follow them."""
        phases: list[Phase] = [Update("d", loss=self.d_loss, trains=self.d, optimizer=self.d_optimizer)]
        if self.augmentation:
            phases.append(Compute("adapt", self.adapted, state=self.probability))
        phases.append(Update("g", loss=self.g_loss, trains=self.g, optimizer=self.g_optimizer))
        if self.path_weight:
            phases.append(Compute("path_mean", self.averaged_path, state=self.path_mean))
        return phases

    def d_loss(self, batch: Batch, rng: Rng) -> Loss:
        """Returns the discriminator's loss −log D(x) − log(1 − D(G(z))), on some steps with R1, per row."""
        real = self.real(batch)
        fake_logits = self.d(self._augmented(self._fakes(batch, rng.fold("fakes")), rng.fold("fake")))

        def critic(image: tf.Tensor) -> tf.Tensor:
            return self.d(self._augmented(image, rng.fold("real")))

        def plain() -> tuple[tf.Tensor, tf.Tensor]:
            logits = critic(real)
            return logits, tf.zeros_like(widen(logits))

        real_logits, slopes = (
            plain() if not self.r1 else _lazily(rng, self.r1_every, lambda: logits_and_slopes(critic, real), plain)
        )
        losses = self.game.discriminator(real_logits, fake_logits) + self.r1_every * self.r1 / 2.0 * slopes
        metrics = self.game.accuracy(real_logits, fake_logits)
        if not self.augmentation:
            return Loss(losses, metrics=metrics)
        metrics["augmented"] = tf.fill(tf.shape(losses), self.probability.value.read_value())
        return Loss(losses, metrics=metrics, outputs={"real_sign": tf.sign(widen(real_logits))})

    def g_loss(self, batch: Batch, rng: Rng) -> Loss:
        """Returns the generator's loss −log D(G(z)), on some steps with the path length's penalty, per row."""
        fake = self._fakes(batch, rng.fold("fakes"))
        losses = self.game.generator(self.d(self._augmented(fake, rng.fold("fake"))))
        if not self.path_weight:
            return Loss(losses)
        lengths = _lazily(
            rng,
            self.path_every,
            lambda: self.path_lengths(self._styles(batch, rng.fold("path")), rng.fold("path")),
            lambda: tf.zeros_like(losses),
        )
        # Without a length, the mean stands for it, so that its penalty and gradient are zero.
        mean = self.path_mean.value.read_value()
        due = tf.equal(rng.step % self.path_every, 0)
        penalties = tf.where(due, tf.square(lengths - mean), 0.0)
        losses += self.path_every * self.path_weight * penalties
        return Loss(losses, metrics={"path_mean": tf.fill(tf.shape(losses), mean)}, outputs={"path_length": lengths})

    def path_lengths(self, styles: tf.Tensor, rng: Rng) -> tf.Tensor:
        """Returns the length ‖Jᵀy‖ [rows] of equation 4: J is an image's Jacobian by its styles, and y random.

        The pixels of y have the variance 1 / (height · width). The squares are averaged over the layers' styles.
        """
        with tf.GradientTape() as tape:
            tape.watch(styles)
            image = self.g.synthesis(styles, rng.fold("noise"))
            y = rng.fold("direction").rows.normal(*image.shape) / (image.shape[1] * image.shape[2]) ** 0.5
            along = tf.reduce_sum(widen(image) * widen(y), [1, 2, 3])
        slopes = widen(tape.gradient(along, styles))
        return tf.sqrt(tf.reduce_mean(tf.reduce_sum(tf.square(slopes), 2), 1))

    def averaged_path(self, batch: Batch, rng: Rng) -> tuple[Batch, dict[Any, tf.Tensor]]:
        """Moves the mean path length towards that of the global batch, on steps that measured it."""
        mean = self.path_mean.value.read_value()
        new = mean + _PATH_DECAY * (tf.reduce_mean(batch["path_length"]) - mean)
        return {}, {self.path_mean.value.ref(): one_of(tf.equal(rng.step % self.path_every, 0), new, mean)}

    def adapted(self, batch: Batch, rng: Rng) -> tuple[Batch, dict[Any, tf.Tensor]]:
        """Moves the augmentation's probability by a step, up if the global batch's mean sign exceeds the target."""
        signs, p = batch["real_sign"], self.probability.value.read_value()
        step = signs.shape[0] / self.images
        p += step * tf.sign(tf.reduce_mean(signs) - self.target)
        return {}, {self.probability.value.ref(): tf.clip_by_value(p, 0.0, 1.0)}

    def evaluate(self, batch: Batch) -> Loss:
        """Returns the discriminator's loss on each held-out example in a group with fakes, and on the same fakes."""
        real, group = self.real(batch), self.d.group
        fake = self.sample(Rng.from_seed(0).fold("jury"), JURY * group)["image"]
        others = tf.repeat(fake[tf.newaxis, : group - 1], tf.shape(real)[0], 0)
        groups = tf.concat([real[:, tf.newaxis], tf.cast(others, real.dtype)], 1)
        real_logits = self.d(tf.reshape(groups, [-1, *self.image_shape]))[::group]
        fake_logits = self.d(fake)
        pairs = [tf.shape(real_logits)[0], fake_logits.shape[0]]
        real_logits = tf.broadcast_to(real_logits[:, tf.newaxis], pairs)
        fake_logits = tf.broadcast_to(fake_logits[tf.newaxis], pairs)
        metrics = self.game.accuracy(real_logits, fake_logits)
        return Loss(self.game.discriminator(real_logits, fake_logits), metrics=metrics)

    def sample(self, rng: Rng, n: int) -> Batch:
        """Generates `n` images."""
        z = rng.rows.normal(n, self.latent_size)
        return {"image": self.g(z, rng=rng.fold("noise"), truncation=self.truncation)}

    def generate(self, batch: Batch) -> Batch:
        """Returns `{"image": ...}`, generated from `batch["latent"]` with the same noise for each image."""
        return {"image": self.g(batch["latent"], truncation=self.truncation)}

    def _fakes(self, batch: Batch, rng: Rng) -> tf.Tensor:
        return self.g.synthesis(self._styles(batch, rng), rng.fold("noise"))

    def _styles(self, batch: Batch, rng: Rng) -> tf.Tensor:
        """Draws the styles of each layer [rows, num_styles, style_size]: of one latent, or of another from some on."""
        styles = self.g.repeated(self.g.mapping(self.latents(batch, rng)))
        if not self.mixing:
            return styles
        others = self.g.repeated(self.g.mapping(self.latents(batch, rng.fold("other"))))
        draws = rng.fold("mixing").wide.rows.uniform(styles.shape[0], 2)
        last = self.g.num_styles - 1
        first_other = tf.where(draws[:, 0] < self.mixing, 1 + tf.cast(draws[:, 1] * last, tf.int32), last + 1)
        own = tf.range(last + 1) < first_other[:, tf.newaxis]
        return tf.where(own[:, :, tf.newaxis], styles, others)

    def _augmented(self, image: tf.Tensor, rng: Rng) -> tf.Tensor:
        if not self.augmentation:
            return image
        return self.augmentation(image, self.probability.value.read_value(), rng)


def _lazily(rng: Rng, every: int, penalised: Any, plain: Any) -> Any:
    """Returns `penalised()` on steps that `every` divides, else `plain()`, without computing the other."""
    return penalised() if every == 1 else tf.cond(tf.equal(rng.step % every, 0), penalised, plain)


def _networks(
    *,
    image_shape: Sequence[int],
    latent_size: int,
    num_classes: None,
    rng: Rng,
    channels: Sequence[int],
    style_size: int,
    mapping_layers: int,
    group: int,
) -> tuple[StyleGenerator, StyleDiscriminator]:
    factor = 2 ** (len(channels) - 1)
    if not channels or image_shape[0] % factor or image_shape[1] % factor:
        raise ConfigurationError(
            f"`StyleGan2.channels` has {len(channels)} entries, one for each resolution, but {image_shape[0]}x"
            f"{image_shape[1]} pixels can't be halved {len(channels) - 1} times: give fewer, or another "
            "`StyleGan2.image_shape`."
        )
    g = StyleGenerator(
        latent_size,
        image_shape,
        channels=channels,
        style_size=style_size,
        mapping_layers=mapping_layers,
        rng=rng.fold("g"),
    )
    return g, StyleDiscriminator(image_shape, channels=channels, group=group, rng=rng.fold("d"))
