"""Prediction of v = α ε − σ x₀ on the cosine schedule (Salimans and Ho, 2022, "Progressive distillation")."""

import dataclasses
import math

import gin
import tensorflow as tf

from core.random import Rng
from models.diffusion.denoiser import Coefficients, Formulation


@gin.configurable
@dataclasses.dataclass(frozen=True)
class VPrediction(Formulation):
    """x_t = cos(πt/2) x₀ + sin(πt/2) ε, a rotation from the image to the noise; v is its direction at t.

    This schedule is Nichol and Dhariwal's (2021) without the offset. Training draws uniform times.
    """

    def coefficients(self, t: tf.Tensor) -> Coefficients:
        angle = 0.5 * math.pi * t
        signal, noise, one = tf.cos(angle), tf.sin(angle), tf.ones_like(t)
        return Coefficients(
            signal=signal,
            noise=noise,
            signal_rate=-0.5 * math.pi * noise,
            noise_rate=0.5 * math.pi * signal,
            c_skip=signal,
            c_out=-noise,
            c_in=one,
            c_noise=t,
        )

    def target(self, t: tf.Tensor, x: tf.Tensor, noise: tf.Tensor) -> tf.Tensor:
        c = self.coefficients(t)
        return c.signal * noise - c.noise * x

    def training_times(self, rng: Rng, rows: int) -> tf.Tensor:
        return rng.wide.rows.uniform(rows)

    def sampling_times(self, steps: int) -> tf.Tensor:
        return tf.linspace(1.0, 0.0, steps + 1)
