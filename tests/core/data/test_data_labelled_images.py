"""Folders of images by class: which label a file gets, and what is refused by its name."""

import numpy as np
import pytest
import tensorflow as tf
from data_lab import everything, level, png

from core.data import balanced, labelled_folders, train_chunks
from core.errors import ConfigurationError, DataError


@pytest.fixture
def animals(tmp_path):
    """Three cats of level 10, a dog of 50, two cows of 90."""
    for name, count, value in (("cat", 3, 10), ("dog", 1, 50), ("cow", 2, 90)):
        for i in range(count):
            png(tmp_path / "animals" / name / f"{i}.png", level(value))
    (tmp_path / "animals" / ".hidden").mkdir()
    (tmp_path / "animals" / "notes.txt").write_text("by hand")
    return tmp_path / "animals"


def labels_and_levels(source):
    found = everything(source)
    return found["label"].tolist(), np.round(found["image"][:, 0, 0, 0] * 255).astype(int).tolist()


def test_labels_are_the_folders_by_name(animals):
    source = labelled_folders(str(animals), size=4)
    assert source.spec == {"image": tf.TensorSpec([4, 4, 3], tf.float32), "label": tf.TensorSpec([], tf.int32)}
    assert labels_and_levels(source) == ([0, 0, 0, 1, 1, 2], [10, 10, 10, 90, 90, 50])
    assert (source.value_range("image"), source.value_range("label")) == ((0.0, 1.0), None)
    assert (source.extremes("label"), source.extremes("image")) == ((0, 0, 2, 5), None)


def test_given_classes_say_the_labels_and_some_may_be_missing(animals):
    source = labelled_folders(str(animals), size=4, classes=["dog", "horse", "cow", "cat"])
    assert labels_and_levels(source) == ([3, 3, 3, 2, 2, 0], [10, 10, 10, 90, 90, 50])


def test_classes_of_images_are_balanced_without_decoding_them(animals):
    source = balanced(labelled_folders(str(animals), size=4), by="label")
    (chunk,) = train_chunks(source, global_batch_size=6, microbatches=1, chunk_steps=2, seed=0).take(1)
    np.testing.assert_array_equal(np.sort(chunk["label"], axis=-1), [[[0, 0, 1, 1, 2, 2]]] * 2)


def test_folder_without_classes_is_refused(animals):
    read = lambda **more: labelled_folders(**{"directory": str(animals), "size": 4} | more)  # noqa: E731
    with pytest.raises(DataError, match=r"cow is the folder of a class that .* it lists `cat`, `dog`, `cox`"):
        read(classes=["cat", "dog", "cox"])
    with pytest.raises(DataError, match=r"Did you mean `cox`\? Add it there"):
        read(classes=["cat", "dog", "cox"])
    with pytest.raises(ConfigurationError, match=r"`labelled_folders.classes` is .* give each class once"):
        read(classes=["cat", "dog", "cow", "dog"])
    with pytest.raises(ConfigurationError, match=r"`labelled_folders.classes` is 'cat'; give a list: \['cat'\]"):
        read(classes="cat")
    for size in (0, 4.5, "4", True):
        with pytest.raises(ConfigurationError, match=f"`size` of `labelled_folders` is {size!r}; it is a number of pi"):
            read(size=size)
    with pytest.raises(DataError, match=r"0.png lies beside the folders of the classes; move it"):
        read(directory=str(animals / "cat"))
    (animals / "cat" / "more").mkdir()
    with pytest.raises(DataError, match=r"cat/more is a folder within that of a class, which isn't searched"):
        read()
    (animals / "cat" / "more").rmdir()
    (animals / "empty").mkdir()
    with pytest.raises(DataError, match=r"empty holds no JPEG or PNG file, but nothing; give each class images"):
        read()
    with pytest.raises(DataError, match=r"empty holds nothing; it needs a folder of images for each class"):
        read(directory=str(animals / "empty"))
    (animals / "empty" / "a.png").write_bytes(b"GIF89a")
    with pytest.raises(DataError, match=r"a.png is a GIF"):
        read()
