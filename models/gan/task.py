"""A generative adversarial network (Goodfellow et al., 2014), whose sample, discriminator and generator run anywhere.

A step has three phases. `sample` makes fakes, `d` learns to tell them from real examples, and `g` learns from what the
discriminator says of the same fakes, through the pass that made them. Each has a placement of its own:

    Gan.sample_placement = @on_one_device()       # the generator on one device, the discriminator on every replica:
    Gan.one_device = ["g"]                        # `d` stays where it is by default, `g` is updated where it samples

The networks come from a function, `Gan.networks = @mlp_networks`; yours is as good:

    @gin.configurable
    def my_networks(*, image_shape, latent_size, num_classes, rng) -> tuple[Module, Module]:
        return MyGenerator(...), MyDiscriminator(...)  # g(z, label) -> images in [-1, 1]; d(image, label) -> logits

Both take a keyword `statistics` as well, for layers of batch normalisation.
"""

from collections.abc import Callable, Sequence

import gin
import numpy as np
import tensorflow as tf

from core import layers
from core.data import Source, check_feature
from core.errors import ConfigurationError, DataError
from core.losses.adversarial import Critic, Game, gradient_penalty, logits_and_slopes
from core.module import Module
from core.optimizers import Transform
from core.random import Rng
from core.task import EVERY_REPLICA, Batch, Compute, Loss, Phase, Placement, Task, Update
from core.task.statistics import Statistics

Networks = Callable[..., tuple[Module, Module]]  # of what `Gan` calls it with: a generator and a discriminator

JURY = 64  # fakes that evaluation shows the discriminator, the same ones beside every real example


@gin.configurable
class Gan(Task):
    """Learns to make images like those of a source, which it reads in [0, 1]; those of another size are resized.

    With `num_classes` both networks are given a class: the discriminator that of the image, the generator the one that
    its image should have. `r1`, `r2` (γ of γ/2 ‖∇D‖²) and `gradient_penalty` (λ) are weights of penalties; `d_steps` is
    how often the discriminator learns for each time that the generator does.
    """

    def __init__(
        self,
        *,
        rng: Rng,
        networks: Networks = gin.REQUIRED,
        image_shape: Sequence[int] = gin.REQUIRED,
        game: Game = gin.REQUIRED,
        g_optimizer: Transform = gin.REQUIRED,
        d_optimizer: Transform = gin.REQUIRED,
        latent_size: int = 64,
        num_classes: int | None = None,
        r1: float = 0.0,
        r2: float = 0.0,
        gradient_penalty: float = 0.0,
        d_steps: int = 1,
        sample_placement: Placement = EVERY_REPLICA,
        d_placement: Placement = EVERY_REPLICA,
        g_placement: Placement = EVERY_REPLICA,
        one_device: Sequence[str] = (),
    ):
        super().__init__()
        self.image_shape, self.latent_size, self.num_classes = list(image_shape), latent_size, num_classes
        self.g, self.d = networks(
            image_shape=self.image_shape, latent_size=latent_size, num_classes=num_classes, rng=rng
        )
        self.game, self.g_optimizer, self.d_optimizer = game, g_optimizer, d_optimizer
        self.penalties = {"r1": r1, "r2": r2, "gradient_penalty": gradient_penalty}
        self.d_steps = d_steps
        self.sample_placement, self.d_placement, self.g_placement = sample_placement, d_placement, g_placement
        self.one_device = tuple(one_device)
        self.mixes_rows = any(isinstance(m, layers.BatchNorm) for m in (*self.g.submodules, *self.d.submodules))
        self._undecided = undecided(game)
        self._check()

    def phases(self) -> list[Phase]:
        """Fakes, the discriminator's update, the generator's.

        With batch normalisation each update makes its own fakes: what the generator's layers saw belongs to its loss.
        """
        d = Update(
            "d",
            loss=self.d_loss,
            trains=self.d,
            optimizer=self.d_optimizer,
            mixes_rows=self.mixes_rows,
            placement=self.d_placement,
        )
        g = Update(
            "g",
            loss=self.g_loss,
            trains=self.g,
            optimizer=self.g_optimizer,
            every=self.d_steps,
            mixes_rows=self.mixes_rows,
            placement=self.g_placement,
            through=None if self.mixes_rows else "sample",
        )
        return [d, g] if self.mixes_rows else [Compute("sample", self.fakes, placement=self.sample_placement), d, g]

    def fakes(self, batch: Batch, rng: Rng) -> dict[str, tf.Tensor]:
        """One for each row, of the class of the real example in it."""
        return {"fake": self._generate(batch, rng, None)}

    def d_loss(self, batch: Batch, rng: Rng) -> Loss:
        """The discriminator's side of the game, and its penalties."""
        seen = self._statistics()
        real, label = self._real(batch), self._label(batch)
        fake = self._generate(batch, rng, self._statistics()) if self.mixes_rows else batch["fake"]

        def critic(image: tf.Tensor) -> tf.Tensor:
            return self.d(image, label, statistics=seen)

        real_logits, r1 = self._judged(critic, real, self.penalties["r1"] / 2.0)
        fake_logits, r2 = self._judged(critic, fake, self.penalties["r2"] / 2.0)
        losses = self.game.discriminator(real_logits, fake_logits) + r1 + r2
        if self.penalties["gradient_penalty"]:
            penalty = gradient_penalty(critic, real, fake, rng.fold("penalty"))
            losses += self.penalties["gradient_penalty"] * penalty
        return Loss(losses, metrics=self._accuracy(real_logits, fake_logits), statistics=seen)

    def g_loss(self, batch: Batch, rng: Rng) -> Loss:
        """The generator's side of the game."""
        seen, label = self._statistics(), self._label(batch)
        fake = self._generate(batch, rng, seen) if self.mixes_rows else batch["fake"]
        fake_logits = self.d(fake, label, statistics=self._statistics())
        real_logits = None
        if self.game.paired:
            real_logits = self.d(self._real(batch), label, statistics=self._statistics())
        return Loss(self.game.generator(fake_logits, real_logits), statistics=seen)

    def evaluate(self, batch: Batch) -> Loss:
        """The discriminator's loss on each held-out example, next to fakes that are the same for all of them."""
        real_logits = self.d(self._real(batch), self._label(batch))
        jury = self.sample(Rng.from_seed(0).fold("jury"), JURY)
        fake_logits = self.d(jury["image"], jury.get("label"))
        pairs = [tf.shape(real_logits)[0], JURY, *real_logits.shape[1:]]
        real_logits = tf.broadcast_to(real_logits[:, tf.newaxis], pairs)
        fake_logits = tf.broadcast_to(fake_logits[tf.newaxis], pairs)
        return Loss(self.game.discriminator(real_logits, fake_logits), metrics=self._accuracy(real_logits, fake_logits))

    def sample(self, rng: Rng, n: int) -> Batch:
        """New images; of a conditional network one of each class after the other, over and over."""
        label = None if self.num_classes is None else tf.range(n) % self.num_classes
        image = self.g(rng.rows.normal(n, self.latent_size), label)
        return {"image": image} if label is None else {"image": image, "label": label}

    def check_source(self, source: Source) -> None:
        """Examples have an image of as many channels and, where classes are given, a label that names one."""
        check_feature(source, "image")
        shape = source.spec["image"].shape
        if shape.rank != 3 or shape[-1] != self.image_shape[-1]:
            raise DataError(
                f"`image` of source `{source.name}` has shape {shape}, but `Gan.image_shape` is {self.image_shape}; "
                "give as many channels as the source has: height and width may differ."
            )
        if self.num_classes is None:
            return
        check_feature(source, "label")
        extremes = source.extremes("label")
        for label, example in (extremes[:2], extremes[2:]) if extremes else ():
            if not 0 <= label < self.num_classes:
                raise DataError(
                    f"`label` of example {example} of source `{source.name}` is {label}, but `Gan.num_classes` is "
                    f"{self.num_classes}: labels are 0 to {self.num_classes - 1}; give as many classes as there are."
                )

    def _generate(self, batch: Batch, rng: Rng, statistics: Statistics | None) -> tf.Tensor:
        z = rng.fold("latent").rows.normal(batch["image"].shape[0], self.latent_size)
        return self.g(z, self._label(batch), statistics=statistics)

    def _statistics(self) -> Statistics | None:
        return Statistics() if self.mixes_rows else None

    def _real(self, batch: Batch) -> tf.Tensor:
        image = batch["image"]
        if image.shape[1:3] != self.image_shape[:2]:
            image = tf.image.resize(image, self.image_shape[:2])
        return 2.0 * image - 1.0

    def _label(self, batch: Batch) -> tf.Tensor | None:
        return None if self.num_classes is None else batch["label"]

    def _judged(self, critic: Critic, image: tf.Tensor, weight: float) -> tuple[tf.Tensor, tf.Tensor | float]:
        """The logits, and `weight` times the squared slopes there."""
        if not weight:
            return critic(image), 0.0
        logits, slopes = logits_and_slopes(critic, image)
        return logits, weight * slopes

    def _accuracy(self, real_logits: tf.Tensor, fake_logits: tf.Tensor) -> dict[str, tf.Tensor]:
        """How often the discriminator is right: by a pair's order where its logits mean nothing by themselves."""
        border = self._undecided
        right = {
            "real_accuracy": real_logits > (fake_logits if border is None else border),
            "fake_accuracy": fake_logits < (real_logits if border is None else border),
        }
        axes = list(range(1, real_logits.shape.rank))
        return {name: tf.reduce_mean(tf.cast(x, tf.float32), axes) for name, x in right.items()}

    def _check(self) -> None:
        for name, weight in self.penalties.items():
            if weight < 0.0:
                raise ConfigurationError(f"`Gan.{name}` is {weight}; the weight of a penalty is zero or more.")
            if weight and self.mixes_rows:
                raise ConfigurationError(
                    f"`Gan.{name}` is {weight}, but a network normalises over the batch, where a row's gradient isn't "
                    "its own: use group or instance normalisation, or no penalty."
                )
        if self.mixes_rows and self.sample_placement != EVERY_REPLICA:
            raise ConfigurationError(
                "`Gan.sample_placement` has no effect where a network normalises over the batch, because each update "
                "then makes its own fakes: use group or instance normalisation, or leave it out."
            )


def undecided(game: Game) -> float | None:
    """The logit of an example that is as likely real as fake; `None` where logits mean something by pairs only.

    Of all logits that real and fake may share, it is the one that costs the discriminator least.
    """
    logits = np.linspace(-2.0, 2.0, 401)
    costs = game.discriminator(tf.constant(logits), tf.constant(logits)).numpy()
    best = logits[costs <= costs.min() + 1e-9]
    return None if best.size == logits.size else float(best.mean())
