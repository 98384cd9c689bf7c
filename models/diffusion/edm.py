"""EDM: preconditioning, noise levels and time steps of Karras et al. (2022), "Elucidating the design space"."""

import dataclasses

import gin
import tensorflow as tf

from core.arguments import check_finite, check_positive
from core.random import Rng
from models.diffusion.denoiser import Coefficients, Formulation


@gin.configurable
@dataclasses.dataclass(frozen=True)
class Edm(Formulation):
    """x_t = x₀ + σ ε, where the time t is the noise level σ; inputs and targets of the network have unit variance.

    `sigma_data` is the standard deviation of pixels in [-1, 1]. Training draws ln σ from N(`mean`, `std`²). Sampling
    takes noise levels from `sigma_max` down to `sigma_min`, evenly spaced in σ^(1/`rho`), and then 0.
    """

    sigma_data: float = 0.5
    mean: float = -1.2
    std: float = 1.2
    sigma_min: float = 0.002
    sigma_max: float = 80.0
    rho: float = 7.0

    def __post_init__(self) -> None:
        check_positive(sigma_data=self.sigma_data, std=self.std, sigma_min=self.sigma_min, rho=self.rho)
        check_finite(mean=self.mean, sigma_max=self.sigma_max)
        if not self.sigma_min < self.sigma_max:
            raise ValueError(
                f"`Edm.sigma_min` is {self.sigma_min} and `Edm.sigma_max` is {self.sigma_max}; sampling goes from the "
                "larger to the smaller: give a larger `sigma_max`."
            )

    def coefficients(self, t: tf.Tensor) -> Coefficients:
        """Returns the coefficients of the paper's table 1, column "EDM"."""
        total = tf.square(t) + self.sigma_data**2
        return Coefficients(
            signal=tf.ones_like(t),
            noise=t,
            signal_rate=tf.zeros_like(t),
            noise_rate=tf.ones_like(t),
            c_skip=self.sigma_data**2 / total,
            c_out=t * self.sigma_data * tf.math.rsqrt(total),
            c_in=tf.math.rsqrt(total),
            c_noise=tf.math.log(t) / 4.0,
        )

    def target(self, t: tf.Tensor, x: tf.Tensor, noise: tf.Tensor) -> tf.Tensor:
        scale = tf.math.rsqrt(tf.square(t) + self.sigma_data**2)
        return scale * (t / self.sigma_data * x - self.sigma_data * noise)

    def training_times(self, rng: Rng, rows: int) -> tf.Tensor:
        return tf.exp(self.mean + self.std * rng.wide.rows.normal(rows))

    def sampling_times(self, steps: int) -> tf.Tensor:
        """Returns the noise levels of the paper's equation 5."""
        low, high = self.sigma_min ** (1.0 / self.rho), self.sigma_max ** (1.0 / self.rho)
        share = [i / max(1, steps - 1) for i in range(steps)]
        return tf.constant([(high + x * (low - high)) ** self.rho for x in share] + [0.0])
