"""Works to profile: tasks and their optimizers on random data, configured with gin."""

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import gin
import numpy as np
import tensorflow as tf

from core import initializers, layers, losses
from core.data import ArraySource
from core.module import Module
from core.optimizers import Transform
from core.random import Rng
from core.task import Batch, Image, Loss, Task, Update
from models.classifiers.task import Classifier
from models.diffusion.unet import unet

EXAMPLES = 2048
CONFIGS = Path(__file__).resolve().parents[2] / "configs"


class FiveLayers(Module):
    """Five 3×3 convolutions with ReLU, max pooling after the first and the third, mean pooling, logits."""

    CHANNELS = (3, 32, 32, 64, 64, 128)

    def __init__(self, *, rng: Rng):
        super().__init__()
        he = initializers.he_normal()
        self.convolutions = [
            layers.Conv2D(size, out, 3, rng=rng.fold(i), w_init=he)
            for i, (size, out) in enumerate(itertools.pairwise(self.CHANNELS))
        ]
        self.pool = layers.MaxPool(2)
        self.logits = layers.Linear(self.CHANNELS[-1], 10, rng=rng.fold("logits"))

    def __call__(self, x: tf.Tensor, rng: Rng | None = None) -> tf.Tensor:
        for i, convolution in enumerate(self.convolutions):
            x = tf.nn.relu(convolution(x))
            if i in (0, 2):
                x = self.pool(x)
        return self.logits(tf.reduce_mean(x, [1, 2]))


@gin.configurable
class ProfiledConvolutions(Classifier):
    """Classifies colour images of 32×32 pixels."""

    def __init__(self, *, rng: Rng, optimizer: Transform = gin.REQUIRED):
        super().__init__(FiveLayers(rng=rng), image=Image([32, 32, 3]), num_classes=10, optimizer=optimizer)


@gin.configurable
class ProfiledDenoiser(Task):
    """Predicts the noise in noisy images [32, 32, 3] by DDPM's U-Net; noise and times come with the examples."""

    def __init__(self, *, rng: Rng, channels: int, optimizer: Transform = gin.REQUIRED):
        super().__init__()
        self.net = unet(image_shape=[32, 32, 3], num_classes=None, channels=channels, rng=rng)
        self.optimizer = optimizer

    def phases(self) -> list[Update]:
        return [Update("net", loss=self.loss, trains=self.net, optimizer=self.optimizer)]

    def loss(self, batch: Batch, rng: Rng | None) -> Loss:
        errors = losses.squared_error(self.net(batch["noisy"], batch["time"]), batch["noise"])
        return Loss(tf.reduce_mean(errors, [1, 2, 3]))


@gin.configurable
def random_images(
    features: Sequence[str] = ("image",), shape: Sequence[int] = gin.REQUIRED, split: Literal["train"] = "train"
) -> ArraySource:
    """Returns images with values from -1 to 1 under these names, and random labels."""
    random = np.random.RandomState(0)
    arrays = {name: random.uniform(-1.0, 1.0, [EXAMPLES, *shape]).astype("float32") for name in features}
    return ArraySource({**arrays, "label": random.randint(0, 10, EXAMPLES)}, name="random images")


@gin.configurable
def random_windows(length: int, vocabulary: int) -> ArraySource:
    """Returns windows of random tokens."""
    token = np.random.RandomState(0).randint(0, vocabulary, [EXAMPLES, length + 1]).astype("int32")
    zeros = np.zeros_like(token)
    return ArraySource({"tokens": token, "document": zeros, "bytes": zeros + 1}, name="random windows")


def _classifier(task: str, batch: int, shape: Sequence[int], *others: str) -> list[str]:
    return [
        f"Experiment.task = @{task}",
        f"{task}.optimizer = @adam()",
        "adam.learning_rate = 1e-3",
        f"Trainer.global_batch_size = {batch}",
        "Experiment.train_source = @random_images()",
        f"random_images.shape = {list(shape)}",
        *others,
    ]


_GPT = {"vocabulary": 256, "context": 128, "num_layers": 4, "size": 128, "num_heads": 4, "optimizer": "@adam()"}

# By name: a file of `configs` or None, and bindings.
WORKS: Mapping[str, tuple[str | None, Sequence[str]]] = {
    "mlp": (None, _classifier("MlpClassifier", 32, [784], "MlpClassifier.sizes = [784, 128, 10]")),
    "softmax": (None, _classifier("LinearClassifier", 64, [784], "LinearClassifier.in_size = 784")),
    "conv": (None, _classifier("ProfiledConvolutions", 64, [32, 32, 3])),
    "transformer": (
        None,
        [
            "Experiment.task = @LanguageModel",
            *(f"LanguageModel.{name} = {value}" for name, value in _GPT.items()),
            "adam.learning_rate = 1e-3",
            "Experiment.train_source = @random_windows()",
            "random_windows.length = 128",
            "random_windows.vocabulary = 256",
            "Trainer.global_batch_size = 16",
        ],
    ),
    "gan": ("digits_gan.gin", []),
    "dcgan": (
        "digits_dcgan.gin",
        [
            "Experiment.train_source = @random_images()",
            "random_images.shape = [32, 32, 3]",
            "Gan.image_shape = [32, 32, 3]",
            "dcgan_networks.channels = [32, 64, 128]",
        ],
    ),
    "cyclegan": (
        "digits_cyclegan.gin",
        [
            "Experiment.train_source = @random_images()",
            "random_images.shape = [64, 64, 3]",
            "random_images.features = ['a', 'b']",
            "CycleGan.image_shape = [64, 64, 3]",
            "CycleGan.width = 32",
            "CycleGan.blocks = 6",
            "Trainer.chunk_steps = 2",
            "Trainer.global_batch_size = 1",
        ],
    ),
}
