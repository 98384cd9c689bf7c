"""Small files in place of a user's downloads."""

from pathlib import Path

import numpy as np
import tensorflow as tf

COUNT, SIZE = 16, 24


def write_images(folder: Path) -> None:
    """Writes `trainA`, `trainB`, `testA` and `testB`, with a few PNG files of noise each."""
    random = np.random.RandomState(0)
    for name in ("trainA", "trainB", "testA", "testB"):
        (folder / name).mkdir()
        for i in range(COUNT):
            pixels = random.randint(0, 256, [SIZE, SIZE, 3]).astype("uint8")
            (folder / name / f"{i}.png").write_bytes(tf.io.encode_png(pixels).numpy())
