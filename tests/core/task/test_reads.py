"""A task checks the features of its sources before the first step."""

from types import SimpleNamespace

import numpy as np
import pytest

from core.data import ArraySource, digit_pairs, digits
from core.data.digit_pairs import CentredImages
from core.errors import DataError
from core.task import Image, Label, Task, Tokens

ZEROS = np.zeros([4, 8, 6, 1])
FLOATS = ArraySource({"image": ZEROS.astype("float32")}, name="floats")


class Reader(Task):
    """Reads what it is told to."""

    def __init__(self, **features):
        super().__init__()
        self.features = features

    def reads(self):
        return self.features


@pytest.mark.parametrize(
    ("source", "feature", "expected"),
    [
        (digits(), "image", (0.0, 1.0)),
        (digits(), "label", None),
        (digit_pairs(), "a", (-1.0, 1.0)),
        (digit_pairs(), "label", None),
        (ArraySource({"x": np.zeros([2, 3], "uint8")}, name="bytes"), "x", (0.0, 1.0)),
        (ArraySource({"x": np.zeros([2, 3], "uint8")}, name="bytes", scale=2.0 / 255.0), "x", (0.0, 2.0)),
        (FLOATS, "image", None),
    ],
)
def test_a_source_says_the_range_of_its_images(source, feature, expected):
    found = source.value_range(feature)
    assert found is None if expected is None else found == pytest.approx(expected)
    source.gather([0])  # nor does reading change it
    assert source.value_range(feature) == found


@pytest.mark.parametrize(
    "image",
    [
        Image(),
        Image([8, 6, 1]),
        Image([8, 6, 1], low=-7.0, high=7.0),  # floats may have any range
        Image([8, 5, 1], size="at_least"),
        Image([9, 4, 1], size="any"),
    ],
)
def test_images_that_fit_are_read(image):
    Reader(image=image).check_source(FLOATS)


@pytest.mark.parametrize(
    ("image", "says"),
    [
        (Image([8, 8, 1]), r"has shape \(8, 6, 1\), but `Reader.image_shape` is \[8, 8, 1\]: give the task the shape"),
        (Image([8, 6]), "has shape"),
        (Image([8, 7, 1], size="at_least"), "has shape"),
        (Image([8, 6, 3], size="any"), "has shape"),
        (Image([8, 8, 1], setting="size", remedy="do this"), r"but `Reader.size` is \[8, 8, 1\]: do this\."),
    ],
)
def test_another_shape_is_refused(image, says):
    with pytest.raises(DataError, match=says):
        Reader(image=image).check_source(FLOATS)


def test_another_range_or_type_is_refused():
    centred = CentredImages({"image": ZEROS.astype("uint8")}, name="centred")
    with pytest.raises(DataError, match=r"`centred` has values in \[-1, 1\], but `Reader` reads images in \[0, 1\]"):
        Reader(image=Image(low=0.0, high=1.0)).check_source(centred)
    numbers = ArraySource({"image": ZEROS.astype("int32")}, name="numbers")
    with pytest.raises(DataError, match="source `numbers` is int32, but `Reader` learns from float32 images"):
        Reader(image=Image()).check_source(numbers)


def test_a_missing_feature_or_a_label_without_a_class_is_refused():
    with pytest.raises(DataError, match="`digits` has no feature `picture`"):
        Reader(picture=Image()).check_source(digits())
    Reader(label=Label(10)).check_source(digits())
    with pytest.raises(DataError, match="is 9, but `Reader` has 9 classes, numbered 0 to 8: renumber the labels"):
        Reader(label=Label(9)).check_source(digits())
    with pytest.raises(DataError, match=r"is 9, but `Reader\.num_classes` is 9: labels are 0 to 8"):
        Reader(label=Label(9, setting="num_classes")).check_source(digits())


def windows(dtype="int32", **tokenizer):
    """Windows of three tokens and the one after them; 7 is the largest, in the last."""
    source = ArraySource({"tokens": np.arange(8).reshape(2, 4).astype(dtype)}, name="windows")
    if tokenizer:
        source.tokenizer = SimpleNamespace(**tokenizer)
    return source


def test_windows_of_tokens_fit_a_context_and_a_vocabulary():
    for source in (windows(), windows(vocabulary=8)):
        Reader(tokens=Tokens(3)).check_source(source)
        Reader(tokens=Tokens(3, vocabulary=8)).check_source(source)
        Reader(tokens=Tokens(3, vocabulary=9)).check_source(source)


@pytest.mark.parametrize(
    ("source", "tokens", "says"),
    [
        (windows("float32"), Tokens(3), r"`windows` is float32 of shape \(4,\), but `Reader` reads windows of text"),
        (
            windows(),
            Tokens(4),
            r"windows of 3 tokens and the one after them, but `Reader.context` is 4: give the source",
        ),
        (windows(), Tokens(3, vocabulary=7), r"of example 1 of source `windows` is 7, but `Reader.vocabulary` is 7"),
        (windows(vocabulary=9), Tokens(3, vocabulary=8), r"a vocabulary of 9, but `Reader.vocabulary` is 8: give"),
    ],
)
def test_other_windows_or_tokens_are_refused(source, tokens, says):
    with pytest.raises(DataError, match=says):
        Reader(tokens=tokens).check_source(source)
