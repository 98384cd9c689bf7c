"""Small files in place of a user's downloads."""

from pathlib import Path

import numpy as np
import tensorflow as tf

COUNT, SIZE = 16, 24


def write_cifar(folder: Path, *, train: int = 80, test: int = 16) -> None:
    """Writes CIFAR-10's binary files, with blurred images of ten classes under noise."""
    random = np.random.RandomState(0)
    classes = random.randint(0, 256, [10, 3, 8, 8]).repeat(4, 2).repeat(4, 3)
    for name, count in (*((f"data_batch_{i}", train // 5) for i in range(1, 6)), ("test_batch", test)):
        labels = (np.arange(count) % 10).astype("uint8")
        images = 0.4 * classes[labels] + random.randint(-15, 166, [count, 3, 32, 32])
        records = [labels[:, None], np.clip(images, 0, 255).astype("uint8").reshape(count, -1)]
        (folder / f"{name}.bin").write_bytes(np.concatenate(records, 1).tobytes())


def write_images(folder: Path) -> None:
    """Writes `trainA`, `trainB`, `testA` and `testB`, with a few PNG files of noise each."""
    random = np.random.RandomState(0)
    for name in ("trainA", "trainB", "testA", "testB"):
        (folder / name).mkdir()
        for i in range(COUNT):
            pixels = random.randint(0, 256, [SIZE, SIZE, 3]).astype("uint8")
            (folder / name / f"{i}.png").write_bytes(tf.io.encode_png(pixels).numpy())
