"""Examples for the tests of sources: ones that equal their own numbers, and folders of images."""

import numpy as np
import tensorflow as tf

from core.data import ArraySource

RANDOM = np.random.RandomState(0)
NOISE = RANDOM.randint(0, 256, [8, 8, 3]).astype(np.uint8)
SMOOTH = tf.image.resize(RANDOM.rand(1, 4, 4, 3), [64, 64]).numpy()[0]  # which JPEG hardly changes


def ids(size):
    """Returns a source whose examples are their own numbers."""
    return ArraySource({"id": np.arange(size)}, name="ids")


def sequences(lengths, longest=None, **more):
    """Returns sequences: example i is 1000 i, 1000 i + 1, ..., and -1 beyond its length."""
    lengths, places = np.asarray(lengths), np.arange(longest or max(lengths))
    words = np.where(places < lengths[:, None], 1000 * np.arange(len(lengths))[:, None] + places, -1)
    arrays = {"words": words, "pair": np.stack([words, -words], -1) * 0.5, "label": np.arange(len(lengths)), **more}
    return ArraySource({"length": lengths, **arrays}, name="sequences")


def png(path, pixels):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(tf.io.encode_png(pixels).numpy())
    return path


def jpeg(path, pixels, **kwargs):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(tf.io.encode_jpeg(pixels, quality=98, chroma_downsampling=False, **kwargs).numpy())
    return path


def level(value, size=4):
    """Returns an image of one grey level, which identifies it."""
    return np.full([size, size, 3], value, np.uint8)


def domains(root, num_a, num_b, split="train"):
    """Writes images of A with levels from 0 on, of B with levels from 100 on."""
    for domain, count, first in (("A", num_a, 0), ("B", num_b, 100)):
        for i in range(count):
            png(root / f"{split}{domain}" / f"{i:03d}.png", level(first + i))
    return str(root)


def everything(source):
    return {k: v.numpy() for k, v in source.gather(tf.range(len(source), dtype=tf.int64)).items()}


def check(source, **expected):
    """Asserts the columns of a source, and their types: whole numbers are int32, others float32."""
    found = everything(source)
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_array_equal(found[name], values)
        kind = np.array(values).dtype.kind
        assert found[name].dtype == {"f": np.float32, "b": np.bool_}.get(kind, np.int32)
