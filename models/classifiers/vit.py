"""The vision transformer, ViT (Dosovitskiy et al., 2021): a transformer over the patches of an image.

An image is cut into patches. A linear map makes a token of each patch, and learned positions are added. A block adds
attention(norm(x)) to x, and then feed_forward(norm(x)). Logits are linear in a token for the class, which the blocks
fill, or in the mean of the patches' tokens. Registers (Darcet et al., 2024) are further learned tokens. The output
ignores them; attention stores features of the whole image there.
"""

from collections.abc import Sequence
from typing import Literal

import gin
import tensorflow as tf

from core import initializers, layers
from core.arguments import check_choice, check_fraction, check_size, is_count
from core.module import Module
from core.optimizers import Transform
from core.random import Rng
from core.task import Image
from models.classifiers.task import Augment, Classifier, Mix

MATRIX = initializers.truncated_normal(0.02)

Pool = Literal["token", "mean"]


class FeedForward(Module):
    """`down(gelu(up(x)))`, with four times as many values between the two matrices, and the exact GELU."""

    def __init__(self, size: int, *, rng: Rng):
        super().__init__()
        self.up = layers.Linear(size, 4 * size, rng=rng.fold("up"), w_init=MATRIX)
        self.down = layers.Linear(4 * size, size, rng=rng.fold("down"), w_init=MATRIX)

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        return self.down(tf.nn.gelu(self.up(x)))


class Block(Module):
    """Adds `attention(norm_1(x))` to `x`, then `feed_forward(norm_2(x))`; every token sees every token."""

    def __init__(self, size: int, num_heads: int, *, epsilon: float, dropout: float, drop_path: float, rng: Rng):
        super().__init__()
        self.norm_1, self.norm_2 = (layers.LayerNorm(size, epsilon=epsilon) for _ in range(2))
        self.attention = layers.MultiHeadAttention(
            size, num_heads, dropout_rate=dropout, w_init=MATRIX, rng=rng.fold("attention")
        )
        self.feed_forward = FeedForward(size, rng=rng.fold("feed_forward"))
        self.dropout, self.drop_path = layers.Dropout(dropout), layers.StochasticDepth(drop_path)

    def __call__(self, x: tf.Tensor, rng: Rng | None = None) -> tf.Tensor:
        y = self.attention(self.norm_1(x), rng and rng.fold("weights"))
        x += self._dropped(y, rng and rng.fold("attention"))
        return x + self._dropped(self.feed_forward(self.norm_2(x)), rng and rng.fold("feed_forward"))

    def _dropped(self, y: tf.Tensor, rng: Rng | None) -> tf.Tensor:
        return self.drop_path(self.dropout(y, rng and rng.fold("values")), rng and rng.fold("path"))


class ViT(Module):
    """Maps images [rows, *image_shape] to logits [rows, num_classes].

    `pool` is `"token"`, for a token of the class, or `"mean"`, over the tokens of the patches. The share of examples
    for which a block does nothing grows linearly from 0 in the first block to `drop_path` in the last.
    """

    def __init__(
        self,
        image_shape: Sequence[int],
        *,
        num_classes: int,
        patch: int = 16,
        size: int,
        num_layers: int,
        num_heads: int,
        pool: Pool = "token",
        registers: int = 0,
        epsilon: float = 1e-6,
        dropout: float = 0.0,
        drop_path: float = 0.0,
        rng: Rng,
    ):
        super().__init__()
        self.image_shape, self.pool = tuple(image_shape), pool
        height, width, channels = image_shape
        check_size(num_classes=num_classes, patch=patch, size=size, num_layers=num_layers, num_heads=num_heads)
        check_fraction(dropout=dropout, drop_path=drop_path)
        check_choice("pool", pool, ("token", "mean"))
        if height % patch or width % patch:
            raise ValueError(f"`patch` is {patch}, which doesn't divide images of {height}x{width} pixels.")
        if not is_count(registers):
            raise ValueError(f"`registers` is {registers!r}; give a number of tokens, 0 or more.")
        places = height // patch * (width // patch)
        self.patches = layers.Conv2D(channels, size, patch, stride=patch, padding="VALID", rng=rng.fold("patches"))
        self.token = tf.Variable(0.02 * rng.fold("token").normal([size]), name="token") if pool == "token" else None
        first = int(pool == "token")
        self.positions = tf.Variable(MATRIX(rng.fold("positions"), [first + places, size]), name="positions")
        self.registers = None
        if registers:
            self.registers = tf.Variable(MATRIX(rng.fold("registers"), [registers, size]), name="registers")
        self.blocks = [
            Block(
                size,
                num_heads,
                epsilon=epsilon,
                dropout=dropout,
                drop_path=drop_path * i / max(1, num_layers - 1),
                rng=rng.fold(i),
            )
            for i in range(num_layers)
        ]
        self.norm = layers.LayerNorm(size, epsilon=epsilon)
        self.logits = layers.Linear(size, num_classes, rng=rng.fold("logits"), w_init=MATRIX)
        self.dropout = layers.Dropout(dropout)

    def __call__(self, x: tf.Tensor, rng: Rng | None = None) -> tf.Tensor:
        x = self.patches(x)
        _, height, width, size = x.shape
        rows, places = tf.shape(x)[0], height * width

        def of_all_rows(tokens: tf.Variable) -> tf.Tensor:
            learned = tf.reshape(tf.cast(tokens, x.dtype), [1, -1, size])
            return tf.tile(learned, [rows, 1, 1])

        tokens = [tf.reshape(x, [-1, places, size])]
        if self.token is not None:
            tokens.insert(0, of_all_rows(self.token))
        x = tf.concat(tokens, 1) + tf.cast(self.positions, x.dtype)
        if self.registers is not None:
            x = tf.concat([x, of_all_rows(self.registers)], 1)
        x = self.dropout(x, rng and rng.fold("tokens"))
        for i, block in enumerate(self.blocks):
            x = block(x, rng and rng.fold(i))
        x = self.norm(x)
        return self.logits(layers.global_average_pool(x[:, :places]) if self.token is None else x[:, 0])


@gin.configurable
class ViTClassifier(Classifier):
    """Classifies images of `image_shape` (height, width, channels) with a `ViT`."""

    def __init__(
        self,
        *,
        rng: Rng,
        image_shape: Sequence[int] = gin.REQUIRED,
        patch: int = 16,
        size: int = gin.REQUIRED,
        num_layers: int = gin.REQUIRED,
        num_heads: int = gin.REQUIRED,
        pool: Pool = "token",
        registers: int = 0,
        epsilon: float = 1e-6,
        dropout: float = 0.0,
        drop_path: float = 0.0,
        num_classes: int = 10,
        augment: Sequence[Augment] = (),
        mix: Mix | None = None,
        optimizer: Transform = gin.REQUIRED,
    ):
        net = ViT(
            image_shape,
            num_classes=num_classes,
            patch=patch,
            size=size,
            num_layers=num_layers,
            num_heads=num_heads,
            pool=pool,
            registers=registers,
            epsilon=epsilon,
            dropout=dropout,
            drop_path=drop_path,
            rng=rng,
        )
        image = Image(image_shape)
        super().__init__(net, image=image, num_classes=num_classes, augment=augment, mix=mix, optimizer=optimizer)
