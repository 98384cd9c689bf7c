"""Rectified flow: straight paths from images to noise (Liu et al., 2023; flow matching: Lipman et al., 2023)."""

import dataclasses
from typing import Literal

import gin
import tensorflow as tf

from core.arguments import check_choice, check_finite, check_positive
from core.random import Rng
from models.diffusion.denoiser import Coefficients, Formulation


@gin.configurable
@dataclasses.dataclass(frozen=True)
class RectifiedFlow(Formulation):
    """x_t = (1 − t) x₀ + t ε from the image at t = 0 to noise at t = 1; the network predicts the velocity ε − x₀.

    Training draws "uniform" `times`, or "logit_normal" ones, 1 / (1 + exp(−u)) for u from N(`mean`, `std`²), which
    prefer the middle (Esser et al., 2024). The papers differ in the direction of time; this is that of Esser et al.
    """

    times: Literal["logit_normal", "uniform"] = "logit_normal"
    mean: float = 0.0
    std: float = 1.0

    def __post_init__(self) -> None:
        check_choice("times", self.times, ("logit_normal", "uniform"))
        check_finite(mean=self.mean)
        check_positive(std=self.std)

    def coefficients(self, t: tf.Tensor) -> Coefficients:
        one = tf.ones_like(t)
        return Coefficients(
            signal=1.0 - t,
            noise=t,
            signal_rate=-one,
            noise_rate=one,
            c_skip=one,
            c_out=-t,
            c_in=one,
            c_noise=t,
        )

    def target(self, t: tf.Tensor, x: tf.Tensor, noise: tf.Tensor) -> tf.Tensor:
        return noise - x

    def training_times(self, rng: Rng, rows: int) -> tf.Tensor:
        if self.times == "uniform":
            return rng.wide.rows.uniform(rows)
        return tf.sigmoid(self.mean + self.std * rng.wide.rows.normal(rows))

    def sampling_times(self, steps: int) -> tf.Tensor:
        return tf.linspace(1.0, 0.0, steps + 1)
