"""The convolutional network of Jordan (2024), "94% on CIFAR-10 in 3.29 seconds on a single GPU" (airbench94).

    2×2 convolution that whitens patches, GELU; three blocks; 3×3 max pooling; logits / 9
    block: 3×3 convolution, 2×2 max pooling, BatchNorm, GELU, 3×3 convolution, BatchNorm, GELU

Its 3×3 convolutions begin as the identity in their first channels. BatchNorm has offsets, but no scales. Evaluation
averages the logits of six views of each image. `whitened_patches` gives the first convolution its weights.

Two things differ from the paper: images are mirrored at random, not in alternate epochs, which costs a tenth more
epochs, and the first bias isn't frozen after three epochs, which saves time only.
"""

import hashlib
from collections.abc import Sequence

import gin
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from core import initializers, layers
from core.arguments import check_positive, check_size
from core.data import Source
from core.errors import ConfigurationError
from core.module import Module
from core.optimizers import Transform
from core.random import Rng
from core.task import Image
from core.task.statistics import Statistics
from core.weights import ArrayType, StartFrom, Weights
from models.classifiers.task import Augment, Classifier

WINDOW = 2  # of the whitening convolution
WHITENING = "net/whitening/w"
LEAST = WINDOW - 1 + 3 * 8  # pixels a side: the last pooling needs 3


class AirbenchBlock(Module):
    """Halves the image: convolution, max pooling, BatchNorm, GELU, convolution, BatchNorm, GELU."""

    def __init__(self, in_channels: int, channels: int, *, rng: Rng):
        super().__init__()
        self.pool = layers.MaxPool(2)
        self.convs, self.norms = [], []
        for i, size in enumerate((in_channels, channels)):
            conv = layers.Conv2D(size, channels, 3, bias=False, w_init=identity_first, rng=rng.fold(i))
            self.convs.append(conv)
            self.norms.append(layers.BatchNorm(channels, decay=0.6, epsilon=1e-12, scale=False, sync=True))

    def __call__(self, x: tf.Tensor, *, statistics: Statistics | None = None) -> tf.Tensor:
        x = self.norms[0](self.pool(self.convs[0](x)), statistics=statistics)
        return layers.gelu(self.norms[1](self.convs[1](layers.gelu(x)), statistics=statistics))


class Airbench(Module):
    """Maps images [rows, height, width, in_channels] in [0, 1] to logits [rows, num_classes]."""

    def __init__(self, *, in_channels: int = 3, num_classes: int, width: int = 64, rng: Rng):
        super().__init__()
        check_size(in_channels=in_channels, num_classes=num_classes, width=width)
        patch = WINDOW * WINDOW * in_channels
        self.whitening = layers.Conv2D(in_channels, 2 * patch, WINDOW, padding="VALID", rng=rng.fold("whitening"))
        sizes = [2 * patch, width, 4 * width, 4 * width]
        self.blocks = [AirbenchBlock(sizes[i], sizes[i + 1], rng=rng.fold("blocks").fold(i)) for i in range(3)]
        self.logits = layers.Linear(sizes[-1], num_classes, bias=False, rng=rng.fold("logits"))

    def __call__(self, x: tf.Tensor, *, statistics: Statistics | None = None) -> tf.Tensor:
        x = layers.gelu(self.whitening(standardised(x)))
        for block in self.blocks:
            x = block(x, statistics=statistics)
        return self.logits(layers.global_max_pool(x)) / 9.0


@gin.configurable
class AirbenchClassifier(Classifier):
    """Classifies images of `image_shape` (height, width, channels) with an `Airbench` network."""

    def __init__(
        self,
        *,
        rng: Rng,
        image_shape: Sequence[int] = (32, 32, 3),
        width: int = 64,
        num_classes: int = 10,
        label_smoothing: float = 0.2,
        augment: Sequence[Augment] = (),
        optimizer: Transform = gin.REQUIRED,
    ):
        height, across, in_channels = image_shape
        if min(height, across) < LEAST:
            raise ConfigurationError(
                f"`AirbenchClassifier.image_shape` is {list(image_shape)}: the network halves an image three times, "
                f"and then needs 3 pixels a side. Give images of at least {LEAST} by {LEAST}."
            )
        super().__init__(
            Airbench(in_channels=in_channels, num_classes=num_classes, width=width, rng=rng),
            image=Image(tuple(image_shape), low=0.0, high=1.0),
            num_classes=num_classes,
            label_smoothing=label_smoothing,
            augment=augment,
            optimizer=optimizer,
        )

    def evaluated(self, image: tf.Tensor) -> tf.Tensor:
        """Returns the mean logits of six views: the image, and it shifted by one pixel along both axes, each mirrored.

        Half of the weight is the unshifted image's.
        """
        height, width = image.shape[1:3]
        views = [image]
        for shift in (-1, 1):
            down, across = (size - 1 - abs(size - 1 - abs(np.arange(size) + shift)) for size in (height, width))
            views.append(tf.gather(tf.gather(image, down, axis=1), across, axis=2))  # pixels outside are mirrored
        mirror = tf.range(width - 1, -1, -1)  # a mesh can't slice backwards
        logits = [self.net(view) + self.net(tf.gather(view, mirror, axis=2)) for view in views]
        return 0.25 * logits[0] + 0.125 * (logits[1] + logits[2])


class PatchWeights(Weights):
    """The whitening convolution's weights, computed from the first `images` of a source."""

    def __init__(self, source: Source, images: int, epsilon: float):
        count = min(images, len(source))
        rows = source.gather(tf.range(count, dtype=tf.int64))["image"]
        self._kernel = whitening(standardised(rows).numpy(), epsilon)
        record = {"path": source.name, "images": count, "sha256": hashlib.sha256(self._kernel.tobytes()).hexdigest()}
        types = {WHITENING: ArrayType("float32", self._kernel.shape)}
        super().__init__(f"patches of {count} images of `{source.name}`", types, record)

    def read(self, name: str) -> npt.NDArray[np.float32]:
        return self._kernel


@gin.configurable
def whitened_patches(source: Source, *, images: int = 5000, epsilon: float = 5e-4) -> StartFrom:
    """Starts an `AirbenchClassifier` from weights that whiten the 2×2 patches of the first `images` of `source`."""
    check_size(images=images)
    check_positive(epsilon=epsilon)
    return StartFrom(lambda: PatchWeights(source, images, epsilon), source.name, take=[WHITENING])


def whitening(images: npt.NDArray[np.float32], epsilon: float) -> npt.NDArray[np.float32]:
    """Returns v / √(λ + ε) and its negative for each eigenpair (λ, v) of the patches' second moments, as a kernel."""
    windows = np.lib.stride_tricks.sliding_window_view(images, (WINDOW, WINDOW), axis=(1, 2))
    patches = np.moveaxis(windows, 3, -1).reshape(-1, WINDOW * WINDOW * images.shape[-1]).astype(np.float64)
    moments, vectors = np.linalg.eigh(patches.T @ patches / len(patches))
    whitened = (vectors / np.sqrt(moments + epsilon))[:, ::-1]  # the largest first
    kernel = np.concatenate([whitened, -whitened], 1)
    return kernel.reshape(WINDOW, WINDOW, images.shape[-1], -1).astype(np.float32)


def standardised(x: tf.Tensor) -> tf.Tensor:
    """Returns pixels in [0, 1] with about zero mean and unit variance."""
    return 4.0 * x - 2.0


def identity_first(rng: Rng, shape: Sequence[int], dtype: tf.DType = tf.float32) -> tf.Tensor:
    """Makes a kernel whose first outputs are its inputs; other outputs have PyTorch's uniform weights."""
    *_, inputs, outputs = shape
    rest = initializers.variance_scaling(1.0 / 3.0, "fan_in", "uniform")(rng, shape, dtype)
    return tf.where(tf.range(outputs) < inputs, initializers.identity()(rng, shape, dtype), rest)
