"""Map-style datasets: Grain's, and those of TensorFlow Datasets; errors name the example."""

import numpy as np
import pytest
import tensorflow as tf
from data_lab import check

from core.data import MapStyle, bad_example
from core.errors import ConfigurationError, DataError


class Items(list):
    """A dataset whose items may be exceptions, which it raises."""

    def __getitem__(self, number):
        item = super().__getitem__(number)
        if isinstance(item, Exception):
            raise item
        return item


def test_examples_have_the_types_of_steps():
    items = [{"id": "a", "x": 0.5, "image": np.full([2, 2], 51 * i, np.uint8), "y": np.int64(i)} for i in range(3)]
    images = np.float32([np.full([2, 2], 51 * i / 255) for i in range(3)])
    source = MapStyle(items)
    check(source, x=[0.5] * 3, image=images, y=[0, 1, 2])
    assert (source.value_range("image"), source.value_range("y")) == ((0.0, 1.0), None)
    check(MapStyle([{"x": 1}, {"x": 2}]), x=[1, 2])  # a single feature


def test_data_sources_of_tensorflow_datasets_are_read():
    import tensorflow_datasets

    with tensorflow_datasets.testing.mock_data(num_examples=5):  # which prepares nothing
        peer = tensorflow_datasets.data_source("mnist", split="train")
        source = MapStyle(peer)
        check(
            source,
            image=np.float32([example["image"] / np.float32(255.0) for example in peer]),
            label=[example["label"] for example in peer],
        )


@pytest.mark.parametrize(
    ("items", "message"),
    [
        ([], "The source `map_style` is empty: a `Items` holds no example"),
        ([(1, 2)], r"\(a `Items`\) makes a tuple; make each example a dictionary"),
        ([{"x": "text"}], "`x` of the source `map_style` has dtype <U4; give integers, floats or bool. Text needs"),
        (
            [ValueError("no\nimage")],
            "example 0 of the source `map_style` .* can't be read: ValueError: no image",
        ),
    ],
    ids=range(4),
)
def test_fault_of_the_first_example_is_named_before_the_run(items, message):
    with pytest.raises(DataError, match=message):
        MapStyle(Items(items))


@pytest.mark.parametrize(
    ("later", "message"),
    [
        ({"y": 1.0}, "example 1 of the source `map_style` (a `Items`) has `y`, but the first one has `x` float64 []"),
        ({"x": [1.0]}, "example 1 of the source `map_style` (a `Items`) has `x` float64 [1], but the first"),
        ({"x": 1e300}, "`x` of the source `map_style` holds 1e+300, which doesn't fit into float32"),
        (None, "example 1 of the source `map_style` (a `Items`) has a NoneType, but"),
        (OSError("gone"), "example 1 of the source `map_style` (a `Items`) can't be read: OSError: gone"),
    ],
    ids=range(5),
)
def test_fault_of_a_later_example_is_named_in_a_graph(later, message):
    source = MapStyle(Items([{"x": 0.5}, later]))
    with pytest.raises(tf.errors.OpError) as error:
        list(tf.data.Dataset.range(1, 2).batch(1).map(source.gather))
    assert message in str(bad_example(str(error.value)))


def test_objects_that_are_not_read_by_number_are_refused():
    import grain

    for dataset in (iter([{"x": 1}]), {"x": [1]}, 3):
        with pytest.raises(ConfigurationError, match=r"`map_style.dataset` is .*; give an object whose `dataset\[i\]`"):
            MapStyle(dataset)
    with pytest.raises(ConfigurationError, match=r"has 9,.* examples: leave out its `.repeat`"):
        MapStyle(grain.MapDataset.range(3).map(lambda x: {"x": x}).repeat())
