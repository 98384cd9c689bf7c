"""The networks of StyleGAN2: the paper's sizes, modulated convolutions with a kernel per row, and filters of SciPy."""

import contextlib

import numpy as np
import pytest
import scipy
import tensorflow as tf

from core.distribution.shapes_only import made, shapes_only
from core.errors import ConfigurationError
from core.random import Rng
from models.gan.style_discriminator import StyleDiscriminator
from models.gan.style_generator import StyleGenerator
from models.gan.style_layers import ModulatedConv, doubled, filtered, minibatch_deviation

RNG = Rng.from_seed(0)
TAPS = np.array([1.0, 3.0, 3.0, 1.0]) / 8.0


@pytest.mark.long
def test_networks_have_as_many_parameters_as_the_papers_config_f():
    channels, shape = [512] * 5 + [256, 128, 64, 32], [1024, 1024, 3]
    with shapes_only():
        g = made(
            lambda: StyleGenerator(512, shape, channels=channels, style_size=512, mapping_layers=8, rng=RNG),
            contextlib.nullcontext,
        )
        d = made(lambda: StyleDiscriminator(shape, channels=channels, group=4, rng=RNG), contextlib.nullcontext)
    assert [sum(v.shape.num_elements() for v in x.parameters().values()) for x in (g, d)] == [30_370_060, 29_012_513]


def by_row(layer, x, style):
    """Convolves each row with its own kernel, as equations 1 and 3 of the paper have it, by SciPy."""
    scales = style @ layer.scales.kernel().numpy() + 1.0
    w, rows = layer.conv.kernel().numpy(), []
    for image, scale in zip(x, scales, strict=True):
        kernel = w * scale[:, None]
        if layer.demodulated:
            kernel = kernel / np.sqrt(np.sum(kernel**2, (0, 1, 2)) + 1e-8)
        if layer.up:  # with zeros between pixels, and the mirrored kernel
            spread = np.zeros([2 * image.shape[0] - 1, 2 * image.shape[1] - 1, image.shape[2]])
            spread[::2, ::2] = image
            image, kernel = np.pad(spread, [(2, 2), (2, 2), (0, 0)]), kernel[::-1, ::-1]
        mode = "valid" if layer.up else "same"
        outputs = [
            sum(scipy.signal.correlate2d(image[..., i], kernel[..., i, j], mode) for i in range(w.shape[2]))
            for j in range(w.shape[3])
        ]
        if layer.up:
            outputs = [scipy.signal.convolve2d(np.pad(y, 1), 4.0 * np.outer(TAPS, TAPS), "valid") for y in outputs]
        rows.append(np.stack(outputs, -1))
    return np.stack(rows)


@pytest.mark.parametrize(
    "settings",
    [{"size": 3}, {"size": 3, "up": True}, {"size": 1, "demodulated": False}],
    ids=["plain", "up", "image"],
)
def test_modulated_convolution_has_a_kernel_for_each_row(settings):
    layer = ModulatedConv(3, 2, style_size=4, rng=RNG, **settings)
    x, style = RNG.normal([2, 4, 5, 3]), RNG.fold("style").normal([2, 4])
    np.testing.assert_allclose(layer(x, style), by_row(layer, x.numpy(), style.numpy()), atol=1e-5)


def test_filters_are_those_of_scipy():
    x = RNG.normal([1, 5, 5, 1])
    up = scipy.signal.upfirdn(2 * TAPS, scipy.signal.upfirdn(2 * TAPS, x[0, :, :, 0], 2, axis=0), 2, axis=1)
    np.testing.assert_allclose(doubled(x)[0, :, :, 0], up[1:11, 1:11], atol=1e-6)
    down = scipy.signal.convolve2d(x[0, :, :, 0], np.outer(TAPS, TAPS))
    np.testing.assert_allclose(filtered(x, 1, 1)[0, :, :, 0], down[2:6, 2:6], atol=1e-6)


def test_deviation_is_that_of_each_group_of_neighbours():
    x = RNG.normal([6, 2, 2, 3])
    found = minibatch_deviation(x, 3)
    np.testing.assert_array_equal(found[..., :3], x)
    for i in range(2):
        rows = slice(3 * i, 3 * i + 3)
        np.testing.assert_allclose(found[rows, ..., 3], np.std(x[rows], 0).mean() * np.ones([3, 2, 2]), rtol=1e-5)
        np.testing.assert_array_equal(minibatch_deviation(x[rows], 3), found[rows])


def test_rows_that_fill_no_group_are_refused():
    d = StyleDiscriminator([4, 4, 1], channels=[2], group=4, rng=RNG)
    with pytest.raises(ConfigurationError, match=r"in groups of 4 \(`group`\), but sees 6 rows"):
        d(tf.zeros([6, 4, 4, 1]))


def test_truncation_moves_styles_towards_their_mean():
    g = StyleGenerator(3, [4, 4, 1], channels=[2], style_size=3, mapping_layers=1, rng=RNG)
    z = RNG.fold("z").normal([2, 3])
    style, centre = g.mapping(z), g.centre()
    np.testing.assert_allclose(centre[0], tf.reduce_mean(g.mapping(RNG.normal([10_000, 3])), 0), atol=0.05)
    truncated = g.synthesis(g.repeated(centre + 0.5 * (style - centre)), None)
    np.testing.assert_allclose(g(z, truncation=0.5), truncated, atol=1e-6)
