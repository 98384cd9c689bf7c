"""MNIST's IDX files: plain and gzipped, with an error for every malformation."""

import gzip
import struct

import numpy as np
import pytest
import tensorflow as tf

from core.data import mnist
from core.data.idx import read_idx
from core.errors import ConfigurationError, DataError

NAMES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
RANDOM = np.random.RandomState(0)
IMAGES = RANDOM.randint(0, 256, [12, 28, 28]).astype(np.uint8)
LABELS = RANDOM.randint(0, 10, [12]).astype(np.uint8)


def idx(values, kind=8):
    """Returns the bytes of an IDX file, as its authors describe them."""
    return struct.pack(">HBB", 0, kind, values.ndim) + struct.pack(f">{values.ndim}i", *values.shape) + values.tobytes()


def write(folder, suffix=""):
    """Writes twelve digits for training and the same in another order for tests."""
    for name, values in zip(NAMES, (IMAGES, LABELS, IMAGES[::-1], LABELS[::-1]), strict=True):
        content = idx(np.ascontiguousarray(values))
        (folder / (name + suffix)).write_bytes(gzip.compress(content, mtime=0) if suffix else content)


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize("split", ["train", "test"])
def test_mnist_is_read(tmp_path, suffix, split):
    write(tmp_path, suffix)
    source = mnist(str(tmp_path), split)
    assert len(source) == 12
    assert source.spec == {"image": tf.TensorSpec([28, 28, 1], tf.float32), "label": tf.TensorSpec([], tf.int32)}
    found = source.gather(tf.constant([3, 11], tf.int64))
    order = np.arange(12) if split == "train" else np.arange(12)[::-1]
    np.testing.assert_allclose(found["image"][..., 0], IMAGES[order[[3, 11]]] / 255.0, rtol=2e-7)
    np.testing.assert_array_equal(found["label"], LABELS[order[[3, 11]]])


def test_plain_file_comes_before_the_gzipped(tmp_path):
    write(tmp_path)
    (tmp_path / f"{NAMES[0]}.gz").write_bytes(b"rubbish")
    assert len(mnist(str(tmp_path))) == 12


def test_unknown_split_is_a_configuration_error(tmp_path):
    with pytest.raises(ConfigurationError, match="`split` of `mnist` is 'valid'"):
        mnist(str(tmp_path), "valid")


@pytest.mark.parametrize(("split", "missing"), [("train", 0), ("train", 1), ("test", 2), ("test", 3)])
def test_a_missing_file_is_named_with_its_place_and_origin(tmp_path, split, missing):
    write(tmp_path)
    (tmp_path / NAMES[missing]).unlink()
    with pytest.raises(DataError) as error:
        mnist(str(tmp_path), split)
    text = str(error.value)
    assert f"`{NAMES[missing]}` (or `{NAMES[missing]}.gz`) isn't in {tmp_path}" in text
    assert "isn't a directory" not in text
    for part in (*NAMES, "LeCun", "Cortes", "Burges", "Nothing is downloaded"):
        assert part in text


def test_a_missing_directory_is_given_in_full(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match=f"{tmp_path / 'nowhere'}, which isn't a directory"):
        mnist("nowhere")


IMAGE_FILE, LABEL_FILE = NAMES[:2]


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        (LABEL_FILE, b"", "begins with nothing, where 00 00 08 01 is expected"),
        (LABEL_FILE, idx(IMAGES), "begins with 00 00 08 03, where 00 00 08 01 is expected"),
        (LABEL_FILE, idx(LABELS, kind=13), "begins with 00 00 0d 01, where"),
        (LABEL_FILE, gzip.compress(idx(LABELS), mtime=0), "it is gzipped: add `.gz` to its name"),
        (LABEL_FILE, idx(LABELS)[:6], "is cut off: 6 bytes, less than its header of 8"),
        (LABEL_FILE, idx(LABELS)[:-1], "says that it holds 12 = 12 values, but 11 bytes follow"),
        (LABEL_FILE, idx(LABELS) + b"x", "says that it holds 12 = 12 values, but 13 bytes follow"),
        (LABEL_FILE, idx(LABELS[:-1]), f"{IMAGE_FILE} holds 12 images, but .*{LABEL_FILE} holds 11 labels"),
        (IMAGE_FILE, idx(IMAGES)[:-5], "12 x 28 x 28 = 9408 values, but 9403 bytes follow"),
        (IMAGE_FILE, idx(IMAGES[:, :20]), "images of 20x28 pixels; MNIST's have 28x28"),
        (IMAGE_FILE, None, "can't be read: Is a directory"),
    ],
)
def test_a_malformed_file_is_refused_by_its_name(tmp_path, file, content, message):
    write(tmp_path)
    if content is None:
        (tmp_path / file).unlink()
        (tmp_path / file).mkdir()
    else:
        (tmp_path / file).write_bytes(content)
    with pytest.raises(DataError, match=message) as error:
        mnist(str(tmp_path))
    assert str(tmp_path / file) in str(error.value)
    assert error.value.exit_code == 4


def flipped(content, place):
    return content[:place] + bytes([content[place] ^ 0xFF]) + content[place + 1 :]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (idx(LABELS), "isn't gzipped: it begins with 00 00, where 1f 8b is expected"),
        (b"", "isn't gzipped: it begins with nothing"),
        (gzip.compress(idx(LABELS), mtime=0)[:-6], "is damaged"),
        (gzip.compress(idx(LABELS), mtime=0)[:5], "is damaged"),
        (flipped(gzip.compress(idx(LABELS), mtime=0), 12), "is damaged"),
        (flipped(gzip.compress(idx(LABELS), mtime=0), -6), "is damaged"),
        (gzip.compress(idx(LABELS), mtime=0) + b"tail", "is damaged"),
    ],
)
def test_a_damaged_gzip_file_is_refused(tmp_path, content, message):
    write(tmp_path, ".gz")
    (tmp_path / f"{NAMES[1]}.gz").write_bytes(content)
    with pytest.raises(DataError, match=message) as error:
        mnist(str(tmp_path))
    assert str(tmp_path / f"{NAMES[1]}.gz") in str(error.value)


def test_an_empty_set_is_refused(tmp_path):
    write(tmp_path)
    (tmp_path / NAMES[0]).write_bytes(idx(IMAGES[:0]))
    (tmp_path / NAMES[1]).write_bytes(idx(LABELS[:0]))
    with pytest.raises(DataError, match=f"`mnist` is empty: {tmp_path}"):
        mnist(str(tmp_path))


@pytest.mark.parametrize("shape", [[7], [3, 2], [2, 3, 4], [2, 1, 3, 2]])
def test_idx_of_any_number_of_axes_is_read(tmp_path, shape):
    values = RANDOM.randint(0, 256, shape).astype(np.uint8)
    (tmp_path / "file").write_bytes(idx(values))
    np.testing.assert_array_equal(read_idx(tmp_path / "file", axes=len(shape)), values)
