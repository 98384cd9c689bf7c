"""Segments digits from clutter of the same brightness: a small U-Net with cross-entropy and Dice."""

import gin
import numpy as np
import tensorflow as tf

from core import initializers, layers, losses, metrics
from core.data import ArraySource, digits
from core.module import Module
from core.task import Image, Label, Loss, Task, Update

SIDE, CELL = 24, 12  # of a canvas, and of its four cells


class Block(Module):
    """Two separable convolutions with a shortcut; training leaves them out for some examples."""

    def __init__(self, in_channels, channels, *, skipped, rng):
        super().__init__()
        he, inner = initializers.he_normal(), []
        for i in range(2):
            conv = layers.SeparableConv2D(channels, channels, 3, rng=rng.fold(i), w_init=he)
            inner += [layers.GroupNorm(channels, 4), tf.nn.relu, conv]
        self.first = layers.Conv2D(in_channels, channels, 3, rng=rng.fold("first"), w_init=he)
        self.residual = layers.Residual(layers.Sequential([*inner, layers.StochasticDepth(skipped)]))

    def __call__(self, x, rng=None):
        return self.residual(self.first(x), rng)


class UNet(Module):
    """Maps images to one logit for each pixel (Ronneberger et al., 2015)."""

    def __init__(self, channels, *, skipped, rng):
        super().__init__()
        below = [*channels[1:], channels[-1]]
        self.down = [
            Block(before, after, skipped=skipped, rng=rng.fold("down").fold(i))
            for i, (before, after) in enumerate(zip([1, *channels], channels, strict=False))
        ]
        self.up = [
            Block(width + lower, width, skipped=skipped, rng=rng.fold("up").fold(i))
            for i, (width, lower) in enumerate(zip(channels[:-1], below, strict=False))
        ]
        self.pool, self.enlarge = layers.MaxPool(2), layers.Resize(scale=2, method="nearest")
        self.last = layers.Conv2D(channels[0], 1, 1, rng=rng.fold("last"))

    def __call__(self, x, rng=None):
        skips = []
        for i, block in enumerate(self.down):
            x = block(self.pool(x) if i else x, rng and rng.fold("down").fold(i))
            skips.append(x)
        for i in reversed(range(len(self.up))):
            x = self.up[i](tf.concat([self.enlarge(x), skips[i]], -1), rng and rng.fold("up").fold(i))
        return self.last(x)[..., 0]


@gin.configurable
class Segmentation(Task):
    def __init__(self, *, rng, channels=(16, 32, 64), skipped=0.1, optimizer=gin.REQUIRED):
        super().__init__()
        self.net, self.optimizer = UNet(channels, skipped=skipped, rng=rng), optimizer

    def phases(self):
        return [Update("net", loss=self.loss, trains=self.net, optimizer=self.optimizer)]

    def loss(self, batch, rng):
        """Returns for each canvas the mean cross-entropy of its pixels plus its own Dice loss."""
        logits, mask = tf.cast(self.net(batch["image"], rng), tf.float32), batch["mask"]
        entropy = tf.reduce_mean(losses.sigmoid_cross_entropy(logits, tf.cast(mask, tf.float32)), axis=[1, 2])
        iou = metrics.IoU.of(tf.cast(logits > 0.0, tf.int32), mask, 2)  # sums over all pixels of all batches
        return Loss(entropy + losses.dice(logits, mask), metrics={"iou": iou})

    def evaluate(self, batch):
        return self.loss(batch, rng=None)

    def reads(self):
        return {"image": Image([SIDE, SIDE, 1]), "mask": Label(2)}


@gin.configurable
def canvases(split="train", noise=0.2, seed=0):
    """Returns a canvas for each digit of `split`: the digit, another one, and both with their pixels shuffled.

    Each is somewhere in a cell of its own. The mask is 1 where a digit has ink.
    """
    source, random = digits(split), np.random.RandomState(seed)
    ink = source.gather(tf.range(len(source), dtype=tf.int64))["image"].numpy()[..., 0]
    image, mask = (np.zeros([len(ink), SIDE, SIDE]) for _ in range(2))
    for i in range(len(ink)):
        pair = [ink[i], ink[random.randint(len(ink))]]
        cells = random.permutation(4)
        for j, cell in enumerate(cells):
            x = pair[j] if j < 2 else random.permutation(pair[j - 2].ravel()).reshape(8, 8)
            top, left = CELL * np.array(divmod(cell, 2)) + random.randint(CELL - 7, size=2)
            place = np.s_[i, top : top + 8, left : left + 8]
            image[place] = x
            mask[place] = (j < 2) * (x >= 0.25)
    image += noise * random.normal(size=image.shape)
    return ArraySource({"image": image[..., None], "mask": mask.astype("int32")}, name="canvases")
