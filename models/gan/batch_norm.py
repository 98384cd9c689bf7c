"""A GAN whose networks normalise over the batch, as in the DCGAN paper (Radford et al., 2016).

Each fake and each logit then depend on all rows of the batch. So penalties on a row's gradient are impossible. Each
update generates fakes itself, because the generator's moving averages are returned with the generator's loss. The
replicas compute each microbatch together, with synchronised layers:

    Experiment.task = @BatchNormGan
    BatchNormGan.networks = @dcgan_networks
    dcgan_networks.g_norm = "batch"
    dcgan_networks.d_norm = "batch"

Custom networks take the arguments of a `Gan`'s networks, and a keyword `statistics` for the normalisation layers.
"""

from collections.abc import Sequence

import gin

from core.errors import ConfigurationError
from core.losses.adversarial import Game
from core.optimizers import Transform
from core.random import Rng
from core.task import Batch, Loss, Phase, Update
from core.task.statistics import Statistics
from models.gan.task import Gan, Networks, normalises_over_batch


@gin.configurable
class BatchNormGan(Gan):
    """Trains as `Gan` does, without penalties; networks normalise by the batch, in evaluation by moving averages."""

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
        d_steps: int = 1,
    ):
        super().__init__(
            rng=rng,
            networks=networks,
            image_shape=image_shape,
            game=game,
            g_optimizer=g_optimizer,
            d_optimizer=d_optimizer,
            latent_size=latent_size,
            num_classes=num_classes,
            d_steps=d_steps,
        )

    def phases(self) -> list[Phase]:
        """Lists the discriminator's and the generator's update, both with `mixes_rows=True`."""
        return [
            Update("d", loss=self.d_loss, trains=self.d, optimizer=self.d_optimizer, mixes_rows=True),
            Update(
                "g", loss=self.g_loss, trains=self.g, optimizer=self.g_optimizer, every=self.d_steps, mixes_rows=True
            ),
        ]

    def d_loss(self, batch: Batch, rng: Rng) -> Loss:
        """Returns the discriminator's loss, on fakes that are generated in this call."""
        seen, label = Statistics(), self.label(batch)
        fake = self.g(self.latents(batch, rng), label, statistics=Statistics())
        real_logits = self.d(self.real(batch), label, statistics=seen)
        fake_logits = self.d(fake, label, statistics=seen)
        metrics = self.game.accuracy(real_logits, fake_logits)
        return Loss(self.game.discriminator(real_logits, fake_logits), metrics=metrics, statistics=seen)

    def g_loss(self, batch: Batch, rng: Rng) -> Loss:
        """Returns the generator's loss, on fakes that are generated in this call."""
        seen, label = Statistics(), self.label(batch)
        fake = self.g(self.latents(batch, rng), label, statistics=seen)
        fake_logits = self.d(fake, label, statistics=Statistics())
        real_logits = self.d(self.real(batch), label, statistics=Statistics()) if self.game.paired else None
        return Loss(self.game.generator(fake_logits, real_logits), statistics=seen)

    def _check_networks(self) -> None:
        if not normalises_over_batch(self):
            raise ConfigurationError(
                "`BatchNormGan.networks` made networks that don't normalise over the batch, so making fakes twice "
                "a step is a waste: give `Experiment.task = @Gan`, with `Gan.networks` and so on."
            )
