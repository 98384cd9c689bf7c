"""ArrayRecord files, and prepared data sets of TensorFlow Datasets: errors name the file and record."""

import json
import os
import sys

import numpy as np
import pytest
import tensorflow as tf
from data_lab import everything

from core.data import array_record, bad_example, tfds
from core.errors import ConfigurationError, DataError

LABEL = {"label": "int"}


def records(count):
    for number in range(count):
        features = {
            "label": tf.train.Feature(int64_list={"value": [number]}),
            "noise": tf.train.Feature(bytes_list={"value": [np.random.RandomState(number).bytes(5000)]}),
        }
        yield tf.train.Example(features={"feature": features}).SerializeToString()


@pytest.fixture
def path(tmp_path):
    from array_record.python.array_record_module import ArrayRecordWriter

    file = ArrayRecordWriter(str(tmp_path / "a.array_record"), "group_size:1")
    for record in records(40):
        file.write(record)
    file.close()
    return tmp_path / "a.array_record"


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda x: x[: len(x) // 2], "a.array_record can't be read as ArrayRecord: Corrupted Riegeli"),
        (lambda x: b"", "a.array_record can't be read as ArrayRecord: ArrayRecord file should be at least 64KB big"),
        (lambda x: bytes(len(x)), "a.array_record can't be read as ArrayRecord: .*; write or copy it again"),
    ],
    ids=range(3),
)
def test_damage_is_named_before_the_run(path, damage, message):
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(DataError, match=message):
        array_record(str(path), LABEL)


def test_damage_of_a_record_and_a_change_are_named_in_a_graph(path):
    def said(source):
        with pytest.raises(tf.errors.OpError) as error:
            list(tf.data.Dataset.range(40).batch(40).map(source.gather))
        return str(bad_example(str(error.value)))

    content = bytearray(path.read_bytes())
    content[100_000] ^= 1
    path.write_bytes(content)
    source = array_record(str(path), LABEL)
    assert f"{path} is damaged: Corrupted Riegeli/records file: chunk data hash mismatch" in said(source)
    os.utime(path, ns=(0, 0))
    assert f"{path} has changed since the run began" in said(source)
    path.unlink()
    assert f"{path} can't be read: No such file" in said(source)


def test_missing_package_is_named_with_its_extra(path, monkeypatch):
    monkeypatch.setitem(sys.modules, "array_record.python", None)
    with pytest.raises(ConfigurationError, match=r"`array_record`, which .*`pip install -e '.\[array_record\]'`"):
        array_record(str(path), LABEL)


@pytest.fixture
def prepared(tmp_path):
    """Returns a function that writes a prepared data set of 5 and 3 records, with changes of its description."""

    def write(split=None, **changes):
        folder = tmp_path / "small" / "1.0.0"
        folder.mkdir(parents=True)
        shards = iter(records(8))
        for number, count in enumerate([5, 3]):
            with tf.io.TFRecordWriter(f"{folder}/small-train.tfrecord-0000{number}-of-00002") as file:
                for _ in range(count):
                    file.write(next(shards))
        train = {"name": "train", "shardLengths": ["5", "3"], **(split or {})}  # as written before formats were named
        (folder / "dataset_info.json").write_text(json.dumps({"name": "small", "splits": [train], **changes}))
        return str(folder)

    return write


def test_files_of_an_older_version_of_tfds_are_read(prepared):
    np.testing.assert_array_equal(everything(tfds(prepared(), LABEL))["label"], np.arange(8))


@pytest.mark.parametrize(
    ("split", "changes", "message"),
    [
        ({"shardLengths": ["5", "4"]}, {}, "00001-of-00002 holds 3 records, but .*dataset_info.json says 4"),
        ({"shardLengths": ["5", "3", "1"]}, {}, "00000-of-00003 can't be read: No such file"),
        ({"shardLengths": None}, {}, "dataset_info.json is damaged, or .* doesn't name the files of the split 'train'"),
        ({"filepathTemplate": "{SHARD}"}, {}, "dataset_info.json is damaged, or .* doesn't name the files"),
        ({}, {"splits": 3}, "dataset_info.json is damaged, or of a version that isn't read: it names no splits"),
        ({}, {"fileFormat": "riegeli"}, "has files of the format 'riegeli'; `tfrecord`, `array_record` are read"),
        ({"name": "test"}, {}, "`split` of `tfds` is 'train'; it has `test`"),
    ],
    ids=range(7),
)
def test_unfit_description_is_named(prepared, split, changes, message):
    with pytest.raises((DataError, ConfigurationError), match=message):
        tfds(prepared(split, **changes), LABEL)


def test_folder_of_all_versions_leads_to_those_of_each(prepared, tmp_path):
    folder = prepared()
    with pytest.raises(DataError, match=rf"holds no `dataset_info.json`; .*`builder.data_dir`: `{folder}`"):
        tfds(str(tmp_path), LABEL)
