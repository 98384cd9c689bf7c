"""Samplers: from noise to images along the probability flow. Each is one loop in the graph, for any number of steps.

A sampler takes a formulation, its denoiser, noise `x` of the first time, and times [steps + 1] that fall to no noise.
"""

from collections.abc import Callable

import gin
import tensorflow as tf

from models.diffusion.denoiser import Denoise, Formulation, velocity

Sampler = Callable[[Formulation, Denoise, tf.Tensor, tf.Tensor], tf.Tensor]
Step = Callable[[tf.Tensor, tf.Tensor, tf.Tensor], tf.Tensor]  # x at time t, t, and the next time -> x at the next time


@gin.configurable
def euler(formulation: Formulation, denoise: Denoise, x: tf.Tensor, times: tf.Tensor) -> tf.Tensor:
    """Takes steps of Euler's method, of first order, with one call of the denoiser each."""
    slope = _slope(formulation, denoise)
    return _stepped(lambda x, t, s: x + (s - t) * slope(x, t), x, times)


@gin.configurable
def heun(formulation: Formulation, denoise: Denoise, x: tf.Tensor, times: tf.Tensor) -> tf.Tensor:
    """Takes steps of Heun's method, of second order, with two calls each (Karras et al., 2022, algorithm 1).

    The last step, to no noise, is Euler's: the flow's equation divides by the noise.
    """
    slope = _slope(formulation, denoise)

    def step(x: tf.Tensor, t: tf.Tensor, s: tf.Tensor) -> tf.Tensor:
        first = slope(x, t)
        second = slope(x + (s - t) * first, s)
        return x + (s - t) * 0.5 * (first + second)

    return euler(formulation, denoise, _stepped(step, x, times[:-1]), times[-2:])


@gin.configurable
def ddim(formulation: Formulation, denoise: Denoise, x: tf.Tensor, times: tf.Tensor) -> tf.Tensor:
    """Mixes the clean image and the noise that the denoiser sees anew at each time (Song, Meng and Ermon, 2021).

    Where the path from image to noise is straight, as in `Edm` and `RectifiedFlow`, these are the steps of `euler`.
    """

    def step(x: tf.Tensor, t: tf.Tensor, s: tf.Tensor) -> tf.Tensor:
        now, later = formulation.coefficients(t), formulation.coefficients(s)
        clean = denoise(x, t)
        return later.signal * clean + later.noise * (x - now.signal * clean) / now.noise

    return _stepped(step, x, times)


def _slope(formulation: Formulation, denoise: Denoise) -> Callable[[tf.Tensor, tf.Tensor], tf.Tensor]:
    return lambda x, t: velocity(formulation.coefficients(t), x, denoise(x, t))


def _stepped(step: Step, x: tf.Tensor, times: tf.Tensor) -> tf.Tensor:
    def body(i: tf.Tensor, x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return i + 1, step(x, times[i], times[i + 1])

    steps = times.shape[0] - 1
    return tf.while_loop(lambda i, _: i < steps, body, (tf.constant(0), x))[1]
