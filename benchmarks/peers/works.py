"""The works to train: their data, and how many of their steps are compared and timed.

`works/NAME.gin` has the model, the batch and the optimizer.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

GIN = Path(__file__).parent / "works"
# Tolerance of losses. Programs that do the same agree to 1e-6 after this many float32 steps, in any order of
# addition, and to 1e-4 for deep networks. Common errors are larger: an epsilon that Adam adds before its correction
# moves the loss by 1e-2. A GAN doubles rounding differences within a few steps.
TOLERANCE = 1e-3
Arrays = Mapping[str, npt.NDArray[np.generic]]


class Work(NamedTuple):
    """Layout of a work; its gin files have the rest.

    With `check=0` only the first step is timed: the work needs no data, and compares no loss.
    """

    what: str
    data: Callable[[], Arrays]
    chunk: int  # steps for one call from Python, where a peer takes several
    log: int  # steps between two lines of metrics
    check: int  # steps after which losses are compared: the mean of the last `log` of them
    order: int  # steps until a peer reads the same examples again: enough to have read all of them
    replicas: bool = False  # whether Tapeloop trains on two of them
    figure: str = "loss"  # the compared metric, as named in metric lines
    tolerance: float = TOLERANCE
    latents: int = 0  # latents per image of a GAN


def gin_files(name: str) -> list[Path]:
    """Returns the gin files that describe the work to Tapeloop."""
    return [GIN / "common.gin", GIN / f"{name}.gin"]


def levels(count: int, size: int) -> Arrays:
    """Makes random pixels, and the classes that a random matrix assigns to them: something to learn."""
    random = np.random.RandomState(0)
    image = random.randint(0, 256, [count, size], dtype=np.uint8)
    centred = image.astype(np.float32) / 255.0 - 0.5
    return {"image": image, "label": (centred @ random.randn(size, 10)).argmax(1).astype(np.int32)}


def coloured(count: int, size: int) -> Arrays:
    """Makes noisy images of one colour each, and classes of colours."""
    random = np.random.RandomState(0)
    colour = random.randint(0, 128, [count, 1, 1, 3])
    noise = random.randint(0, 128, [count, size, size, 3])
    label = ((colour[:, 0, 0] - 63.5) @ random.randn(3, 10)).argmax(1)
    return {"image": (colour + noise).astype(np.uint8), "label": label.astype(np.int32)}


def tokens(count: int, length: int, vocabulary: int) -> Arrays:
    """Makes windows in which the next token is most often the successor in a random permutation."""
    random = np.random.RandomState(0)
    after = random.permutation(vocabulary).astype(np.int32)
    strangers = random.randint(0, vocabulary, [count, length + 1]).astype(np.int32)
    jumps, found = random.rand(count, length + 1) < 0.1, strangers.copy()
    for i in range(1, length + 1):
        found[:, i] = np.where(jumps[:, i], strangers[:, i], after[found[:, i - 1]])
    return {"tokens": found, "document": np.zeros_like(found), "bytes": np.ones_like(found)}


def noisy(count: int, size: int) -> Arrays:
    """Makes images with noise that grows with their time, [0, 1), and the noise."""
    random, image = np.random.RandomState(0), coloured(count, size)["image"].astype(np.float32) / 127.5 - 1.0
    time, noise = random.rand(count).astype(np.float32), random.randn(*image.shape).astype(np.float32)
    share = time[:, None, None, None]
    return {"noisy": np.sqrt(1.0 - share) * image + np.sqrt(share) * noise, "time": time, "noise": noise}


def two_domains(count: int, size: int) -> Arrays:
    """Makes noisy one-colour images in [-1, 1], and others with less noise."""
    domains = {"a": coloured(count, size)["image"], "b": coloured(count, size)["image"] // 2 + 64}
    return {name: image.astype(np.float32) / 127.5 - 1.0 for name, image in domains.items()}


WORKS = {
    "mlp": Work(
        "MLP 784-128-10, batch 32",
        lambda: levels(60_000, 784),
        chunk=50, log=250, check=500, order=4000,
    ),
    "softmax": Work(
        "softmax regression 784-10, batch 64",
        lambda: levels(60_000, 784),
        chunk=50, log=250, check=500, order=2000,
    ),
    "conv": Work(
        "five 3×3 convolutions to 128 channels, 32×32×3, batch 64",
        lambda: coloured(10_000, 32),
        chunk=10, log=10, check=20, order=320,
    ),
    "transformer": Work(
        "transformer, 4 blocks of 128, 4 heads, 128 tokens, batch 16",
        lambda: tokens(4_000, 128, 256),
        chunk=10, log=10, check=20, order=500,
    ),
    "resnet": Work(
        "ResNet-50, 224×224×3, batch 8",
        lambda: coloured(64, 224),
        # From 3.30, a step takes two programs of Keras and two of ours to 3.093 to 3.104: by rounding.
        chunk=1, log=1, check=2, order=8, tolerance=5e-3,
    ),
    "vit": Work(
        "ViT-S with patches of 16, 224×224×3, batch 8",
        lambda: coloured(64, 224),
        chunk=1, log=1, check=2, order=8,
    ),
    "unet": Work(
        "DDPM's U-Net of 64 channels, 32×32×3, batch 8",
        lambda: noisy(512, 32),
        chunk=1, log=1, check=4, order=64,
    ),
    "dcgan": Work(
        "DCGAN, 32×32×3, channels 32-64-128, batch 64",
        lambda: coloured(10_000, 32),
        chunk=5, log=5, check=10, order=320, figure="d/loss", latents=64, tolerance=3e-3,
    ),
    "cyclegan": Work(
        "CycleGAN, 64×64×3, 6 blocks, width 32, batch 1",
        lambda: two_domains(500, 64),
        chunk=5, log=5, check=5, order=1000, figure="generators/loss", tolerance=3e-3,
    ),
    "start": Work(
        "command to first finished step, `digits_mlp`",
        dict,
        chunk=1, log=1, check=0, order=0,
    ),
    "replicas-mlp": Work(
        "MLP 784-128-10, batch 256, 2 replicas",
        lambda: levels(60_000, 784),
        chunk=50, log=100, check=200, order=200, replicas=True,
    ),
    "replicas-wide-1024": Work(
        "MLP 784-1024-1024-10, batch 1024, 2 replicas",
        lambda: levels(60_000, 784),
        chunk=10, log=10, check=20, order=100, replicas=True,
    ),
    "replicas-wide-256": Work(
        "MLP 784-1024-1024-10, batch 256, 2 replicas",
        lambda: levels(60_000, 784),
        chunk=10, log=10, check=20, order=200, replicas=True,
    ),
}  # fmt: skip
