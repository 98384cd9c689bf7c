"""The generator of StyleGAN2 (Karras et al., 2020, figure 2c and 7): maps latents to styles, and styles to an image."""

import itertools
from collections.abc import Sequence

import tensorflow as tf

from core.layers.shapes import widen
from core.module import Module
from core.random import Rng
from models.gan.style_layers import ModulatedConv, activated, doubled, linear

_CENTRE = 4096  # latents whose mean style is the centre of the truncation


class StyleMapping(Module):
    """Maps latents z [rows, latent_size], scaled to unit size, to styles w [rows, style_size]."""

    def __init__(self, latent_size: int, style_size: int, *, num_layers: int, rng: Rng):
        super().__init__()
        sizes = [latent_size, *[style_size] * num_layers]
        # A hundredth of the others' learning rate, as in the first StyleGAN, else training is unstable.
        self.layers = [linear(a, b, rng=rng.fold(i), rate=0.01) for i, (a, b) in enumerate(itertools.pairwise(sizes))]

    def __call__(self, z: tf.Tensor) -> tf.Tensor:
        x = z * tf.cast(tf.math.rsqrt(tf.reduce_mean(tf.square(widen(z)), -1, keepdims=True) + 1e-8), z.dtype)
        for layer in self.layers:
            x = activated(layer(x))
        return x


class StyledConv(Module):
    """A modulated 3×3 convolution to `height`×`width` pixels, scaled noise, biases and the activation."""

    def __init__(
        self, in_channels: int, out_channels: int, style_size: int, height: int, width: int, *, rng: Rng, up: bool
    ):
        super().__init__()
        self.conv = ModulatedConv(in_channels, out_channels, 3, style_size, rng=rng.fold("conv"), up=up)
        self.strength = tf.Variable(0.0, name="strength")
        self.b = tf.Variable(tf.zeros([out_channels]), name="b")
        self.noise = tf.Variable(rng.fold("noise").normal([height, width, 1]), trainable=False, name="noise")

    def __call__(self, x: tf.Tensor, style: tf.Tensor, rng: Rng | None) -> tf.Tensor:
        y = self.conv(x, style)
        noise = tf.expand_dims(self.noise, 0) if rng is None else rng.rows.normal(*y.shape[:3], 1)
        return activated(y + tf.cast(self.strength * widen(noise), y.dtype) + tf.cast(self.b, y.dtype))


class ToImage(Module):
    """A modulated 1×1 convolution to the image's channels, without demodulation."""

    def __init__(self, in_channels: int, out_channels: int, style_size: int, *, rng: Rng):
        super().__init__()
        self.conv = ModulatedConv(in_channels, out_channels, 1, style_size, rng=rng, demodulated=False)
        self.b = tf.Variable(tf.zeros([out_channels]), name="b")

    def __call__(self, x: tf.Tensor, style: tf.Tensor) -> tf.Tensor:
        y = self.conv(x, style)
        return y + tf.cast(self.b, y.dtype)


class StyleGenerator(Module):
    """G: `channels` are those of each resolution, from the smallest. Each resolution doubles the last one's sides.

    The image is a sum over resolutions: each adds its own, and the sum is doubled. Noise is drawn from the `rng`, or
    the same for each image if that is None.
    """

    def __init__(
        self,
        latent_size: int,
        image_shape: Sequence[int],
        *,
        channels: Sequence[int],
        style_size: int,
        mapping_layers: int,
        rng: Rng,
    ):
        super().__init__()
        self.latent_size, self.num_styles = latent_size, 2 * len(channels)
        height, width = (side // 2 ** (len(channels) - 1) for side in image_shape[:2])
        self.mapping = StyleMapping(latent_size, style_size, num_layers=mapping_layers, rng=rng.fold("mapping"))
        self.start = tf.Variable(rng.fold("start").normal([height, width, channels[0]]), name="start")
        self.convs, self.images = [], []
        for i, (a, b) in enumerate(itertools.pairwise([channels[0], *channels])):
            here, size = rng.fold(i), (style_size, height << i, width << i)
            if i > 0:
                self.convs.append(StyledConv(a, b, *size, rng=here.fold("up"), up=True))
            self.convs.append(StyledConv(b, b, *size, rng=here.fold("conv"), up=False))
            self.images.append(ToImage(b, image_shape[-1], style_size, rng=here.fold("image")))

    def __call__(
        self, z: tf.Tensor, label: None = None, *, rng: Rng | None = None, truncation: float = 1.0
    ) -> tf.Tensor:
        style = self.mapping(z)
        if truncation != 1.0:
            centre = tf.cast(self.centre(), style.dtype)
            style = centre + truncation * (style - centre)
        return self.synthesis(self.repeated(style), rng)

    def repeated(self, style: tf.Tensor) -> tf.Tensor:
        """Returns `style` [rows, style_size] for each of the layers: [rows, num_styles, style_size]."""
        return tf.repeat(style[:, tf.newaxis], self.num_styles, 1)

    def centre(self) -> tf.Tensor:
        """Returns the mean style [1, style_size], of fixed latents."""
        z = Rng.from_seed(0).fold("centre").wide.normal([_CENTRE, self.latent_size])
        return tf.reduce_mean(self.mapping(z), 0, keepdims=True)

    def synthesis(self, styles: tf.Tensor, rng: Rng | None) -> tf.Tensor:
        """Makes images of `styles` [rows, num_styles, style_size].

        A resolution's last convolution and image have styles of their own, and the next one's first convolution shares
        the image's.
        """
        style = tf.unstack(styles, axis=1)
        x = tf.repeat(tf.cast(self.start, styles.dtype)[tf.newaxis], tf.shape(styles)[0], 0)
        x = tf.ensure_shape(x, [styles.shape[0], *self.start.shape])
        image = None
        for i, conv in enumerate(self.convs):
            x = conv(x, style[i], None if rng is None else rng.fold(i))
            if i % 2 == 0:  # the last of its resolution
                added = self.images[i // 2](x, style[i + 1])
                image = added if image is None else doubled(image) + added
        return image
