"""The common form of diffusion models: a noisy image, a denoiser, and the ordinary differential equation of sampling.

A formulation mixes a clean image x₀ with normal noise ε at time t, and makes a denoiser D from a network F (Karras et
al., 2022, equation 7). D(x, t) estimates the clean image in x:

    x_t = α x₀ + σ ε
    D(x, t) = c_skip x + c_out F(c_in x, c_noise)

F learns the target with which D(x_t, t) would be x₀, that is (x₀ − c_skip x_t) / c_out. Its squared error is the
squared error of D with the weight 1 / c_out². A sample follows dx/dt = α' D + σ' (x − α D) / σ from noise to an image.
"""

import abc
from collections.abc import Callable
from typing import NamedTuple

import tensorflow as tf

from core.random import Rng

Denoise = Callable[[tf.Tensor, tf.Tensor], tf.Tensor]  # D: a noisy image [rows, ...] and its time, a scalar
Network = Callable[[tf.Tensor, tf.Tensor], tf.Tensor]  # F: the same image, scaled, and `c_noise`


class Coefficients(NamedTuple):
    """The coefficients of a formulation at time t, in the shape of t."""

    signal: tf.Tensor  # α
    noise: tf.Tensor  # σ
    signal_rate: tf.Tensor  # dα/dt
    noise_rate: tf.Tensor  # dσ/dt
    c_skip: tf.Tensor
    c_out: tf.Tensor
    c_in: tf.Tensor
    c_noise: tf.Tensor  # the time as the network sees it


class Formulation(abc.ABC):
    """A path from images to noise, the prediction of a network on that path, and the times to train and sample at."""

    @abc.abstractmethod
    def coefficients(self, t: tf.Tensor) -> Coefficients:
        """Returns the coefficients at `t`, a tensor of any shape."""

    @abc.abstractmethod
    def target(self, t: tf.Tensor, x: tf.Tensor, noise: tf.Tensor) -> tf.Tensor:
        """Returns (x₀ − c_skip x_t) / c_out for clean images `x`. The closed form is also exact at small `t`."""

    @abc.abstractmethod
    def training_times(self, rng: Rng, rows: int) -> tf.Tensor:
        """Returns a random time per row for the loss: [rows]."""

    @abc.abstractmethod
    def sampling_times(self, steps: int) -> tf.Tensor:
        """Returns the times between `steps` steps of a sampler, from the most noise to none: [steps + 1]."""


def mixed(c: Coefficients, x: tf.Tensor, noise: tf.Tensor) -> tf.Tensor:
    """Returns the noisy image α x + σ ε."""
    return c.signal * x + c.noise * noise


def denoised(c: Coefficients, network: Network, x: tf.Tensor) -> tf.Tensor:
    """Returns D(x, t), the clean image that `network` sees in the noisy `x`."""
    return c.c_skip * x + c.c_out * network(c.c_in * x, c.c_noise)


def velocity(c: Coefficients, x: tf.Tensor, clean: tf.Tensor) -> tf.Tensor:
    """Returns dx/dt of the probability flow (Song et al., 2021) at `x`, given `clean` = D(x, t)."""
    return c.signal_rate * clean + c.noise_rate * (x - c.signal * clean) / c.noise
