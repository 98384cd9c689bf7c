"""Sources of arrays and `.npz` files: their examples, and the input that they refuse."""

import zipfile

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from core.data import ArraySource, Source, npz
from core.data.source import check_feature, check_split
from core.errors import ConfigurationError, DataError
from tests.commands import fork_server

RANDOM = np.random.RandomState(0)


def of(values, **kwargs):
    return ArraySource({"x": np.asarray(values)}, name="mine", **kwargs)


@pytest.mark.parametrize(
    ("given_dtype", "shape", "expected"),
    [
        ("uint8", [5, 2], "float32"),
        ("uint8", [5], "int32"),
        ("int8", [5, 2], "int32"),
        ("int64", [5], "int32"),
        ("uint32", [5, 3], "int32"),
        ("float16", [5, 2], "float32"),
        ("float32", [5], "float32"),
        ("float64", [5, 2], "float32"),
        ("bool", [5, 2], "bool"),
        (">i2", [5], "int32"),
        (">f8", [5], "float32"),
    ],
)
def test_features_become_what_steps_compute_with(given_dtype, shape, expected):
    values = RANDOM.randint(0, 2, shape).astype(given_dtype)
    source = of(values, scale=1.0)
    indices = tf.constant([4, 0, 4], tf.int64)
    found = source.gather(indices)["x"]
    assert source.spec == {"x": tf.TensorSpec(shape[1:], expected)}
    assert found.dtype == expected
    np.testing.assert_array_equal(found, values[[4, 0, 4]].astype(expected))
    assert source.spec == {"x": tf.TensorSpec(shape[1:], expected)}  # nor does reading change it


def test_levels_become_numbers_from_zero_to_one():
    levels = np.arange(256, dtype=np.uint8).reshape(256, 1)
    found = of(levels).gather(tf.range(256, dtype=tf.int64))["x"].numpy()
    np.testing.assert_allclose(found, levels / 255.0, rtol=2e-7)
    assert (found.min(), found.max()) == (0.0, 1.0)
    np.testing.assert_array_equal(of(levels, scale=1 / 16).gather([16, 8])["x"], [[1.0], [0.5]])


def test_a_source_knows_its_length_and_name_and_gathers_inside_a_map():
    source = of([3, 1, 4, 1, 5])
    assert (len(source), source.name) == (5, "mine")
    mapped = tf.data.Dataset.from_tensors(tf.constant([2, 4], tf.int64)).map(source.gather)
    np.testing.assert_array_equal(next(iter(mapped))["x"], [4, 5])


def test_arrays_changed_after_the_first_reading_do_not_matter():
    values = np.ones([3], np.float32)
    source = of(values)
    source.gather([0])
    values[:] = 7
    np.testing.assert_array_equal(source.gather([0, 1, 2])["x"], [1, 1, 1])


@settings(max_examples=30, deadline=None)
@given(
    values=hnp.arrays(
        np.int64, hnp.array_shapes(min_dims=1, max_dims=3), elements=st.integers(-(1 << 31), (1 << 31) - 1)
    ),
    read=st.booleans(),
)
def test_extremes_are_found_with_an_example_that_has_them(values, read):
    source = of(values)
    if read:
        source.gather([0])
    low, low_index, high, high_index = source.extremes("x")
    assert (low, high) == (values.min(), values.max())
    assert (values[low_index] == low).any()
    assert (values[high_index] == high).any()


@pytest.mark.parametrize("values", [np.zeros([3, 2], np.uint8), np.zeros([3], np.float32), np.zeros([3], bool)])
def test_extremes_are_of_integers_only(values):
    assert of(values).extremes("x") is None


def test_custom_source_may_leave_extremes_unknown():
    class Streamed(Source):
        @property
        def spec(self):
            return {"x": tf.TensorSpec([], tf.int32)}

        def gather(self, indices):
            return {"x": tf.cast(indices, tf.int32)}

    assert Streamed("streamed", size=1, place="a test").extremes("x") is None
    with pytest.raises(DataError, match="`streamed` is empty: the shelf holds no example"):
        Streamed("streamed", size=0, place="the shelf")


def test_a_missing_feature_is_named_with_the_nearest():
    source = ArraySource({"image": np.zeros([1, 2]), "label": np.zeros([1])}, name="mine")
    with pytest.raises(
        DataError, match=r"`mine` has no feature `lable`; it has `image`, `label`\. Did you mean `label`"
    ):
        source.extremes("lable")
    check_feature(source, "label")


def test_a_split_is_checked_with_the_nearest():
    check_split("mine", "test", ["train", "test"])
    with pytest.raises(ConfigurationError, match=r"`split` of `mine` is 'tests'; it has `train`, `test`.*mean `test`"):
        check_split("mine", "tests", ["train", "test"])


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({}, "`mine` is empty: a test holds no array"),
        ({"x": np.zeros([0, 3])}, "`mine` is empty: a test holds no example"),
        ({"x": np.zeros([2]), "y": np.zeros([3])}, r"`mine` \(a test\) differ in length: `x` has 2, `y` has 3"),
        ({"x": np.float32(3)}, "`x` of the source `mine` is a single number"),
        ({"x": np.array([None, 1])}, "`x` of the source `mine` has dtype object"),
        ({"x": np.array(["a"])}, "`x` of the source `mine` has dtype <U1"),
        ({"x": np.array([1j])}, "`x` of the source `mine` has dtype complex128"),
        ({"x": np.array([0, 1 << 31])}, "holds 2147483648, which doesn't fit into int32"),
        ({"x": np.array([5, -(1 << 40)])}, "holds -1099511627776, which doesn't fit into int32"),
        ({"x": np.array([1 << 63], np.uint64)}, "holds 9223372036854775808, which doesn't fit"),
    ],
)
def test_arrays_that_cannot_be_examples_are_refused(arrays, message):
    with pytest.raises(DataError, match=message) as error:
        ArraySource(arrays, name="mine", place="a test")
    assert error.value.exit_code == 4


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_an_npz_file_is_read_back(tmp_path, save):
    image, label = RANDOM.randint(0, 256, [6, 4, 4, 3]).astype(np.uint8), np.arange(6)
    save(tmp_path / "data.npz", image=image, label=label)
    source = npz(str(tmp_path / "data.npz"))
    found = source.gather(tf.constant([5, 2], tf.int64))
    np.testing.assert_allclose(found["image"], image[[5, 2]] / 255.0, rtol=2e-7)
    np.testing.assert_array_equal(found["label"], [5, 2])
    np.testing.assert_array_equal(npz(str(tmp_path / "data.npz"), scale=1.0).gather([5])["image"], image[[5]])


def refused(path, message):
    with pytest.raises(DataError, match=message) as error:
        npz(str(path))
    assert str(path) in str(error.value)


def test_a_missing_npz_file_is_named_by_its_absolute_path(tmp_path, monkeypatch):
    refused(tmp_path / "none.npz", "There is no file")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match=str(tmp_path / "none.npz")):
        npz("none.npz")


def test_pickled_contents_are_refused_without_loading_them(tmp_path):
    np.savez(tmp_path / "data.npz", x=np.array([{"a": 1}], dtype=object), allow_pickle=True)
    refused(tmp_path / "data.npz", "`x` of .* can't be read.*pickle runs code")


def test_files_that_are_not_npz_are_refused(tmp_path):
    path = tmp_path / "data.npz"
    path.write_bytes(b"not a zip")
    refused(path, "isn't an `.npz` file")
    np.save(tmp_path / "array.npy", np.zeros(3))
    refused(tmp_path / "array.npy", "isn't an `.npz` file")
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("readme.txt", "hello")
    refused(path, "holds `readme.txt`, which isn't an array")
    with zipfile.ZipFile(path, "w"):
        pass
    refused(path, "is empty: .* holds no array")


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_a_damaged_npz_file_is_refused(tmp_path, save):
    path = tmp_path / "data.npz"
    save(path, x=RANDOM.standard_normal([100]))
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    refused(path, "isn't an `.npz` file")
    for place in (len(whole) // 2, 60):  # among the values, and in the array's own header
        path.write_bytes(whole[:place] + bytes(b ^ 0xFF for b in whole[place : place + 4]) + whole[place + 4 :])
        refused(path, "can't be read")


def test_making_a_source_leaves_tensorflow_free_to_make_devices(tmp_path):
    (tmp_path / "devices.py").write_text("""
import numpy as np, tensorflow as tf
from core.data import ArraySource, digits, markov, topics
sources = [digits("test"), ArraySource({"x": np.arange(3)}, name="mine"), topics("test", 8), markov("test", 8)]
[source.spec for source in sources], [source.extremes(next(iter(source.spec))) for source in sources]
cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
print(len(tf.config.list_logical_devices("CPU")), sources[1].gather([2])["x"].numpy())
""")
    done = fork_server().run(command="devices", cwd=tmp_path, timeout=600)
    assert done.stdout.strip() == "2 [2]", done.stderr


def test_a_number_that_only_float64_holds_is_named():
    numbers = np.array([1.0, np.inf, np.nan, -3.5e38])
    with pytest.raises(DataError, match=r"`x` of the source `mine` holds -3.5e\+38, which doesn't fit into float32"):
        of(numbers)
    np.testing.assert_array_equal(of(numbers[:3]).values("x"), numbers[:3].astype(np.float32))
