"""A generative adversarial network (Goodfellow et al., 2014) with configurable placement of its three phases.

The phase `sample` generates fakes. The phase `d` trains the discriminator to tell these from real examples. The phase
`g` trains the generator on the same fakes, with gradients through the phase `sample`. Each phase may be placed:

    Experiment.placements = {"sample": @on_one_device()}   # the generator on one device, `d` on every replica:
    Experiment.one_device = ["g"]                          # `g` learns where it samples

The networks come from a function, `Gan.networks = @mlp_networks`, or a custom one:

    @gin.configurable
    def my_networks(*, image_shape, latent_size, num_classes, rng) -> tuple[Module, Module]:
        return MyGenerator(...), MyDiscriminator(...)  # g(z, label) -> images in [-1, 1]; d(image, label) -> logits

Networks that normalise over the batch are for `@BatchNormGan` (`models/gan/batch_norm.py`).
"""

from collections.abc import Callable, Mapping, Sequence

import gin
import tensorflow as tf

from core import layers
from core.arguments import check_finite
from core.errors import ConfigurationError
from core.losses.adversarial import Critic, Game, gradient_penalty, logits_and_slopes
from core.module import Module
from core.optimizers import Transform
from core.random import Rng
from core.task import Batch, Compute, Feature, Image, Label, Loss, Phase, Served, Task, Update

Networks = Callable[..., tuple[Module, Module]]  # with `Gan`'s arguments: makes a generator and a discriminator

JURY = 64  # fakes that evaluation shows the discriminator, the same ones for every real example


@gin.configurable
class Gan(Task):
    """Learns to generate images like the source's images in [0, 1], which are resized to `image_shape`.

    With `num_classes`, the discriminator gets the image's class, and the generator the class to generate. `r1` and `r2`
    (γ in γ/2 ‖∇D‖²) and `gradient_penalty` (λ) are weights of penalties. `d_steps` is the number of discriminator
    updates per generator update.
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
    ):
        super().__init__()
        self.image_shape, self.latent_size, self.num_classes = list(image_shape), latent_size, num_classes
        self.g, self.d = networks(
            image_shape=self.image_shape, latent_size=latent_size, num_classes=num_classes, rng=rng
        )
        self.game, self.g_optimizer, self.d_optimizer = game, g_optimizer, d_optimizer
        self.penalties = {"r1": r1, "r2": r2, "gradient_penalty": gradient_penalty}
        self.d_steps = d_steps
        self._check_penalties()
        self._check_networks()

    def phases(self) -> list[Phase]:
        """Lists the phases `sample` (fakes), `d` (discriminator) and `g` (generator)."""
        return [
            Compute("sample", self.fakes),
            Update("d", loss=self.d_loss, trains=self.d, optimizer=self.d_optimizer),
            Update(
                "g", loss=self.g_loss, trains=self.g, optimizer=self.g_optimizer, every=self.d_steps, through="sample"
            ),
        ]

    def reads(self) -> dict[str, Feature]:
        advice = "give as many channels as the source has: height and width may differ"
        image = Image(self.image_shape, low=0.0, high=1.0, size="any", remedy=advice)
        if self.num_classes is None:
            return {"image": image}
        return {"image": image, "label": Label(self.num_classes, setting="num_classes")}

    def fakes(self, batch: Batch, rng: Rng) -> dict[str, tf.Tensor]:
        """Returns `{"fake": images}`: one fake per row, with the class of the row's real example."""
        return {"fake": self.g(self.latents(batch, rng), self.label(batch))}

    def d_loss(self, batch: Batch, rng: Rng) -> Loss:
        """Returns the discriminator's loss of `game`, plus the penalties, per row."""
        real, fake, label = self.real(batch), batch["fake"], self.label(batch)

        def critic(image: tf.Tensor) -> tf.Tensor:
            return self.d(image, label)

        real_logits, r1 = _judged(critic, real, self.penalties["r1"] / 2.0)
        fake_logits, r2 = _judged(critic, fake, self.penalties["r2"] / 2.0)
        losses = self.game.discriminator(real_logits, fake_logits) + r1 + r2
        if self.penalties["gradient_penalty"]:
            penalty = gradient_penalty(critic, real, fake, rng.fold("penalty"))
            losses += self.penalties["gradient_penalty"] * penalty
        return Loss(losses, metrics=self.game.accuracy(real_logits, fake_logits))

    def g_loss(self, batch: Batch, rng: Rng) -> Loss:
        """Returns the generator's loss of `game`, per row."""
        label = self.label(batch)
        fake_logits = self.d(batch["fake"], label)
        real_logits = self.d(self.real(batch), label) if self.game.paired else None
        return Loss(self.game.generator(fake_logits, real_logits))

    def evaluate(self, batch: Batch) -> Loss:
        """Returns the discriminator's loss on each held-out example, compared with the same fakes each time."""
        real_logits = self.d(self.real(batch), self.label(batch))
        jury = self.sample(Rng.from_seed(0).fold("jury"), JURY)
        fake_logits = self.d(jury["image"], jury.get("label"))
        pairs = [tf.shape(real_logits)[0], JURY, *real_logits.shape[1:]]
        real_logits = tf.broadcast_to(tf.expand_dims(real_logits, 1), pairs)
        fake_logits = tf.broadcast_to(tf.expand_dims(fake_logits, 0), pairs)
        metrics = self.game.accuracy(real_logits, fake_logits)
        return Loss(self.game.discriminator(real_logits, fake_logits), metrics=metrics)

    def sample(self, rng: Rng, n: int) -> Batch:
        """Generates `n` images; a conditional network cycles through the classes."""
        label = None if self.num_classes is None else rng.rows.numbers(n) % self.num_classes
        image = self.g(rng.rows.normal(n, self.latent_size), label)
        return {"image": image} if label is None else {"image": image, "label": label}

    def serve(self, features: Mapping[str, tf.TensorSpec]) -> dict[str, Served]:
        inputs = {"latent": tf.TensorSpec([None, self.latent_size])}
        if self.num_classes is not None:
            inputs["label"] = features["label"]
        return {"generate": Served(self.generate, inputs, examples=self._with_latents)}

    def generate(self, batch: Batch) -> Batch:
        """Returns `{"image": ...}`, generated from `batch["latent"]` and, if conditional, `batch["label"]`."""
        return {"image": self.g(batch["latent"], self.label(batch))}

    def _with_latents(self, batch: Batch) -> Batch:
        return {**batch, "latent": self.latents(batch, Rng.from_seed(0))}

    def latents(self, batch: Batch, rng: Rng) -> tf.Tensor:
        """Returns normal random latents z, one per row of `batch`: [rows, latent_size], in the dtype of its images."""
        image = batch["image"]
        return tf.cast(rng.fold("latent").rows.normal(image.shape[0], self.latent_size), image.dtype)

    def real(self, batch: Batch) -> tf.Tensor:
        """Returns `batch["image"]`, resized to `image_shape` and rescaled from [0, 1] to [-1, 1]."""
        image = batch["image"]
        if image.shape[1:3] != self.image_shape[:2]:
            image = tf.cast(tf.image.resize(image, self.image_shape[:2]), image.dtype)
        return 2.0 * image - 1.0

    def label(self, batch: Batch) -> tf.Tensor | None:
        """Returns `batch["label"]`; None for an unconditional network."""
        return None if self.num_classes is None else batch["label"]

    def _check_penalties(self) -> None:
        for name, weight in self.penalties.items():
            check_finite(**{f"Gan.{name}": weight})
            if weight < 0.0:
                raise ConfigurationError(f"`Gan.{name}` is {weight}; the weight of a penalty is zero or more.")
            if weight and normalises_over_batch(self):
                raise ConfigurationError(
                    f"`Gan.{name}` is {weight}, but a network normalises over the batch, so a row's gradient depends "
                    "on others: use group or instance normalisation, or no penalty with `Experiment.task = "
                    "@BatchNormGan`."
                )

    def _check_networks(self) -> None:
        if normalises_over_batch(self):
            raise ConfigurationError(
                "`Gan.networks` made a network that normalises over the batch, but `Gan` needs independent rows: "
                "give `Experiment.task = @BatchNormGan`, with `BatchNormGan.networks` and so on, or use "
                "group or instance normalisation."
            )


def normalises_over_batch(module: Module) -> bool:
    """Says whether `module` has a batch normalisation layer."""
    return any(isinstance(part, layers.BatchNorm) for part in module.submodules)


def _judged(critic: Critic, image: tf.Tensor, weight: float) -> tuple[tf.Tensor, tf.Tensor | float]:
    """Returns the logits of `image`, and `weight` times the squared norm of each logit's gradient by its image."""
    if not weight:
        return critic(image), 0.0
    logits, slopes = logits_and_slopes(critic, image)
    return logits, weight * slopes
