"""Records of TFRecord: read by number; errors name damage and mismatches with the declaration."""

import os
import re
import threading

import numpy as np
import pytest
import tensorflow as tf
from data_lab import NOISE, everything

from core.data import bad_example, balanced, tfrecord, train_chunks, unreadable_image
from core.data.crc32c import crc32c
from core.data.tfrecord_index import index_of
from core.errors import ConfigurationError, DataError

RANDOM = np.random.RandomState(0)
FEATURES = {"x": ("float", [2]), "label": "int"}
PNG = tf.io.encode_png(NOISE).numpy()


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def example(**features):
    lists = {
        "f": lambda x: tf.train.Feature(float_list=tf.train.FloatList(value=x)),
        "i": lambda x: tf.train.Feature(int64_list=tf.train.Int64List(value=x)),
        "O": lambda x: tf.train.Feature(bytes_list=tf.train.BytesList(value=x)),
    }
    made = {
        name: lists[np.array(x, object if isinstance(x[0], bytes) else None).dtype.kind](x) if x else tf.train.Feature()
        for name, x in features.items()
    }
    return tf.train.Example(features=tf.train.Features(feature=made)).SerializeToString()


def write(path, records, options=None):
    with tf.io.TFRecordWriter(str(path), options) as file:
        for record in records:
            file.write(record)
    return path


def numbered(first, count):
    return [example(x=[i + 0.5, -i], label=[i], more=[b"."] * (i % 4)) for i in range(first, first + count)]


@pytest.fixture
def two_files(tmp_path):
    write(tmp_path / "a.tfrecord", numbered(0, 7))
    write(tmp_path / "b.tfrecord", numbered(7, 5))
    return str(tmp_path / "*.tfrecord")


def test_crc32c_agrees_with_a_plain_loop():
    def plain(content):
        sum_ = 0xFFFFFFFF
        for byte in content:
            sum_ ^= byte
            for _ in range(8):
                sum_ = sum_ >> 1 ^ (0x82F63B78 if sum_ & 1 else 0)
        return sum_ ^ 0xFFFFFFFF

    pieces = [RANDOM.bytes(length) for length in (0, 1, 3, 4, 5, 255, 256, 257, 512, 3000, 0, 8)]
    assert crc32c(pieces).tolist() == [plain(piece) for piece in pieces]
    assert crc32c([b""]).tolist() == [0]


def test_records_of_all_files_are_read_by_number(two_files):
    source = tfrecord(two_files, FEATURES)
    assert source.spec == {"x": tf.TensorSpec([2], tf.float32), "label": tf.TensorSpec([], tf.int32)}
    found = everything(source)
    np.testing.assert_array_equal(found["label"], np.arange(12))
    np.testing.assert_array_equal(found["x"], np.stack([np.arange(12) + 0.5, -np.arange(12)], 1))
    mixed = source.gather(tf.constant([11, 0, 7, 6, 0], tf.int64))
    np.testing.assert_array_equal(mixed["label"], [11, 0, 7, 6, 0])


def test_features_of_each_kind_are_read(tmp_path):
    level = NOISE.tobytes()
    records = [example(a=[0.5], b=[1, 2], t=[5, 6, 7], image=[PNG], raw=[level], y=[0.5]), example(
        a=[1.5], b=[3, -4], t=[], image=[PNG], raw=[level], y=[0.5, 1.5])]  # fmt: skip
    features = {
        "a": "float",
        "b": ("int", 2),
        "t": ("int", 4, -1),
        "y": ("float", [3], 0),
        "image": ("image", 8),
        "raw": ("levels", [8, 8, 3]),
    }
    source = tfrecord(str(write(tmp_path / "a", records)), features)
    found = everything(source)
    np.testing.assert_array_equal(found["a"], [0.5, 1.5])
    np.testing.assert_array_equal(found["b"], [[1, 2], [3, -4]])
    np.testing.assert_array_equal(found["t"], [[5, 6, 7, -1], [-1] * 4])
    np.testing.assert_array_equal(found["y"], [[0.5, 0, 0], [0.5, 1.5, 0]])
    np.testing.assert_allclose(found["image"], [NOISE / 255.0] * 2, atol=1e-5)
    np.testing.assert_allclose(found["raw"], [NOISE / 255.0] * 2, rtol=1e-6)
    assert (source.value_range("image"), source.value_range("raw"), source.value_range("a")) == ((0, 1), (0, 1), None)
    np.testing.assert_array_equal(source.values("t"), found["t"])
    np.testing.assert_array_equal(source.values("b"), found["b"])
    assert source.values("image") is None


def test_records_are_drawn_by_class(tmp_path):
    records = [example(label=[int(i % 5 == 0)]) for i in range(20)]
    source = balanced(tfrecord(str(write(tmp_path / "a", records)), {"label": "int"}), by="label")
    (chunk,) = train_chunks(source, global_batch_size=4, microbatches=1, chunk_steps=3, seed=0).take(1)
    np.testing.assert_array_equal(chunk["label"].numpy().sum(axis=-1), [[2]] * 3)


def test_index_is_made_once_and_anew_if_the_file_has_changed(tmp_path, monkeypatch):
    path, index = write(tmp_path / "a", numbered(0, 5)), tmp_path / ".a.index"
    made = index_of(path)
    first = index.read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr("core.data.tfrecord_index._walked", None)  # which isn't called again
        np.testing.assert_array_equal(index_of(path).places, made.places)
    for spoiled in (first[:-1], b"", b"strange" * 50, first[:60] + b"\1" + first[61:]):
        index.write_bytes(spoiled)
        np.testing.assert_array_equal(index_of(path).places, made.places)
        assert index.read_bytes() == first
    write(path, numbered(0, 6))
    assert len(index_of(path)) == 6
    assert index.read_bytes() != first
    assert not list(tmp_path.glob("*.tmp"))


def test_index_is_kept_in_the_cache_if_the_folder_is_read_only(tmp_path, monkeypatch):
    path, index = write(tmp_path / "a", numbered(0, 5)), tmp_path / ".a.index"
    index.mkdir()  # nor can a folder be replaced by a file
    assert len(index_of(path)) == 5
    (kept,) = (tmp_path / "cache" / "tapeloop" / "tfrecord").iterdir()
    content = kept.read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr("core.data.tfrecord_index._walked", None)
        assert len(index_of(path)) == 5
    kept.unlink()
    (tmp_path / "cache" / "tapeloop" / "tfrecord").rmdir()
    (tmp_path / "cache" / "tapeloop" / "tfrecord").write_text("no folder")
    assert len(index_of(path)) == 5  # made again each time
    assert content


def test_index_may_be_made_by_several_threads_at_once(tmp_path):
    path, found = write(tmp_path / "a", numbered(0, 50)), []
    threads = [threading.Thread(target=lambda: found.append(len(index_of(path)))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [50] * 8
    assert len(index_of(path)) == 50


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda x: x[:-1], r"record 11 of .*a \(at byte \d+\) is cut off: the file ends at byte \d+"),
        (lambda x: x[:-60], r"record 1\d of .* is cut off"),
        (lambda x: x + b"\0" * 5, r"record 12 of .* is cut off"),
        (lambda x: x[:50] + b"\xff" * 8 + x[58:], "is damaged"),
        (lambda x: b"text\n" * 20, r"a \(100 bytes\) doesn't begin with a record of TFRecord"),
        (lambda x: x[:5], r"a \(5 bytes\) doesn't begin with a record"),
        (lambda x: b"", "The source `tfrecord` is empty"),
    ],
)
def test_damaged_file_is_refused(tmp_path, spoil, message):
    path = write(tmp_path / "a", numbered(0, 12))
    path.write_bytes(spoil(path.read_bytes()))
    with pytest.raises(DataError, match=message):
        everything(tfrecord(str(path), FEATURES))


def test_a_damaged_length_is_named(tmp_path):
    path = write(tmp_path / "a", numbered(0, 12))
    places = index_of(path).places
    content = bytearray(path.read_bytes())
    content[places[4]] ^= 1
    path.write_bytes(content)
    with pytest.raises(
        DataError, match=rf"record 4 of .*a \(at byte {places[4]}\) is damaged: the check sum of its len"
    ):
        tfrecord(str(path), FEATURES)


@pytest.mark.parametrize("compression", ["GZIP", "ZLIB"])
def test_compressed_files_are_refused(tmp_path, compression):
    path = write(tmp_path / "a", numbered(0, 12), tf.io.TFRecordOptions(compression_type=compression))
    with pytest.raises(DataError, match=r"is compressed \(GZIP\).*`gunzip -c`|compressed \(ZLIB\), or something else"):
        tfrecord(str(path), FEATURES)


def said(source, number):
    """Returns a run's output about an example that can't be read."""
    mapped = tf.data.Dataset.from_tensors(tf.constant([0, number], tf.int64)).map(source.gather)
    with pytest.raises(tf.errors.InvalidArgumentError) as raised:
        next(iter(mapped))
    return str(bad_example(raised.value.message) or unreadable_image(raised.value.message))


@pytest.mark.long
def test_a_damaged_record_is_named(tmp_path):
    path = write(tmp_path / "a", numbered(0, 12))
    places = index_of(path).places
    content = bytearray(path.read_bytes())
    content[places[5] + 30] ^= 1
    path.write_bytes(content)
    message = said(tfrecord(str(path), FEATURES), 5)
    assert message.startswith(f"record 5 of {path} (at byte {places[5]}) is damaged: its check sum is another")


def test_a_file_that_changes_or_goes_during_a_run_is_named(tmp_path):
    path = write(tmp_path / "a", numbered(0, 12))
    source = tfrecord(str(path), FEATURES)
    os.utime(path, ns=(0, 0))
    assert f"{path} has changed since the run began" in said(source, 3)
    path.unlink()
    assert f"{path} can't be read: No such file or directory" in said(source, 3)


@pytest.mark.long
@pytest.mark.parametrize(
    ("later", "features", "message"),
    [
        (example(x=[1.0, 2.0]), {}, "`label`; it has `x`"),
        (example(x=[1.0, 2.0], label=[0.5]), {}, "`label` of record 1 of .* is floats, but"),
        (example(x=[1.0], label=[1]), {}, "`x` of record 1 of .* has 1 values, but `tfrecord.features` says 2"),
        (example(x=[1.0, 2.0], label=[-1 << 40]), {}, "`label` of record 1 .* holds -1099511627776, which doesn't fit"),
        (example(x=[1.0, 2.0], label=[1] * 3), {"label": ("int", 2, 0)}, "`label` of record 1 of .* has 3 values"),
        (example(x=[1.0, 2.0], label=[1], y=[b"abc"]), {"y": ("levels", 2)}, "`y` of record 1 of .* has 3 bytes"),
        (example(x=[1.0, 2.0], label=[1], y=[PNG[:60]]), {"y": ("image", 2)}, "record 1 of .* can't be read"),
        (b"\xff\xff\xff", {}, "record 1 of .* isn't a `tf.train.Example`"),
    ],
    ids=range(8),
)  # fmt: skip
def test_a_record_that_is_not_as_declared_is_named(tmp_path, later, features, message):
    y = PNG if "image" in features.get("y", ()) else b"ab"
    path = write(tmp_path / "a", [example(x=[0.5, 1.5], label=[1], y=[y]), later])
    assert re.search(message, said(tfrecord(str(path), FEATURES | features), 1))


@pytest.mark.parametrize(
    ("record", "features", "message"),
    [
        (example(x=[1.0]), {"label": "int"}, "record 0 of .* has no feature `label`; it has `x`"),
        (example(lable=[1]), {"label": "int"}, "Did you mean `lable`"),
        (example(x=[1.0]), {"x": "int"}, "`x` of record 0 of .* is floats, but `tfrecord.features` says 'int'"),
        (example(x=[1]), {"x": ("image", 8)}, "is integers, but `tfrecord.features` says 'image'"),
        (example(x=[]), {"x": "int"}, "`x` of record 0 of .* is empty, but"),
        (example(x=[1, 2]), {"x": ("int", 3)}, r"`x` of record 0 of .* has 2 values, .* says 3.*LENGTH"),
        (example(x=[1, 2, 3]), {"x": ("int", 2, 0)}, "has 3 values, but"),
        (example(x=[b"abc"]), {"x": ("levels", 2)}, r"`x` of record 0 of .* has 3 bytes, but .* says \[2\], 2\."),
        (b"", {"x": "int"}, "record 0 of .* has no feature `x`; it has none"),
        (b"\xff", {"x": "int"}, "record 0 of .* isn't a `tf.train.Example`"),
    ],
    ids=range(10),
)  # fmt: skip
def test_fault_of_the_first_record_is_named_before_the_run(tmp_path, record, features, message):
    with pytest.raises(DataError, match=message):
        tfrecord(str(write(tmp_path / "a", [record])), features)


@pytest.mark.parametrize(
    "declared",
    [
        "double",
        ("int", 0),
        ("int", [2, 2], 0),
        ("levels",),
        ("image", [2, 2]),
        ("levels", 3, 0),
        ("int", 2, 0, 1),
        ("int", "x"),
        3,
        [["int"]],
    ],
)  # fmt: skip
def test_unknown_declaration_is_refused(tmp_path, declared):
    with pytest.raises(ConfigurationError, match=r"`tfrecord.features` says .* for `x`; give 'float', 'int'"):
        tfrecord(str(write(tmp_path / "a", numbered(0, 1))), {"x": declared})


def test_empty_declaration_is_refused(tmp_path):
    for features in ({}, ["label"], None):
        with pytest.raises(ConfigurationError, match=r"`tfrecord.features` is .*; declare at least one by its name"):
            tfrecord(str(write(tmp_path / "a", numbered(0, 1))), features)
