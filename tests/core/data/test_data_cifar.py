"""CIFAR-10 from the user's binary files, and ImageNet from folders."""

import numpy as np
import pytest
import tensorflow as tf

from core.data import cifar10, imagenet
from core.errors import DataError


def write(folder, name, labels, *, first=0):
    """Writes a file whose image i is red of level first + i, and whose first pixel of the second line is blue."""
    records = np.zeros([len(labels), 3073], np.uint8)
    records[:, 0] = labels
    records[:, 1:1025] = np.arange(first, first + len(labels))[:, None]
    records[:, 2049 + 32] = 255
    (folder / name).write_bytes(records.tobytes())


def test_cifar10_is_read(tmp_path):
    for i in range(5):
        write(tmp_path, f"data_batch_{i + 1}.bin", [i, 9], first=2 * i)
    write(tmp_path, "test_batch.bin", [3])
    source = cifar10(str(tmp_path))
    assert len(source) == 10
    batch = source.gather(tf.constant([0, 5], tf.int64))
    np.testing.assert_array_equal(batch["label"], [0, 9])
    np.testing.assert_allclose(batch["image"][1, 0, 0], [5 / 255, 0, 0])
    np.testing.assert_allclose(batch["image"][1, 1, 0], [5 / 255, 0, 1])
    assert source.spec["image"] == tf.TensorSpec([32, 32, 3], tf.float32)
    assert cifar10(str(tmp_path), "test").extremes("label")[0] == 3


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "test_batch.bin isn't there. Nothing is downloaded"),
        (bytes(3074), "holds 3074 bytes, which aren't records of 3073"),
        (b"", "holds 0 bytes"),
        (bytes(3073) + b"\x0b" + bytes(3072), "gives image 1 the class 11, of classes 0 to 9"),
    ],
)
def test_other_files_are_refused(content, says, tmp_path):
    if content is not None:
        (tmp_path / "test_batch.bin").write_bytes(content)
    with pytest.raises(DataError, match=says):
        cifar10(str(tmp_path), "test")


def test_imagenet_numbers_the_classes_of_its_training_folders(tmp_path):
    png = tf.io.encode_png(tf.zeros([4, 4, 3], tf.uint8)).numpy()
    for place in ("train/n01", "train/n02", "train/n03", "val/n01", "val/n03"):
        (tmp_path / place).mkdir(parents=True)
        (tmp_path / place / "a.png").write_bytes(png)
    found = imagenet(str(tmp_path), size=4, split="val")
    np.testing.assert_array_equal(found.values("label"), [0, 2])
    assert len(imagenet(str(tmp_path), size=4)) == 3
    with pytest.raises(DataError, match="give the folder that holds `train` and `val`"):
        imagenet(str(tmp_path / "val"), size=4)
