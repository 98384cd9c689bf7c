"""The table of readers: each row is a way to store examples in files, and joins the tests below."""

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow as tf
from data_lab import everything, level, png

from core.data import (
    Source,
    array_record,
    csv,
    hugging_face,
    image_folder,
    labelled_folders,
    npz,
    parquet,
    text_files,
    tfds,
    tfrecord,
    webdataset,
)
from core.errors import ConfigurationError, DataError
from core.testing import assert_source

NUMBERS = np.arange(24, dtype=np.int64)  # of the examples, which identify them


@dataclasses.dataclass(frozen=True)
class Reader:
    """A reader of `name`; `write` makes one in a folder; `missing` is its error for a path without files."""

    name: str
    write: Callable[[Path], object]
    read: Callable[[str], Source]
    feature: str  # that holds the numbers
    missing: str
    memory: str = ""  # the module that checks the machine's memory, if the reader loads all at once
    too_large: str = ""


def records() -> Iterator[bytes]:
    for number in NUMBERS:
        feature = {"id": tf.train.Feature(int64_list=tf.train.Int64List(value=[number]))}
        yield tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString()


def write_records(path: Path) -> None:
    with tf.io.TFRecordWriter(str(path)) as file:
        for record in records():
            file.write(record)


def write_array_records(path: Path) -> None:
    from array_record.python.array_record_module import ArrayRecordWriter

    file = ArrayRecordWriter(str(path), "group_size:1")
    for record in records():
        file.write(record)
    file.close()


def prepare(path: Path) -> None:
    """Builds a data set with TensorFlow Datasets."""
    import tensorflow_datasets

    class Numbers(tensorflow_datasets.core.GeneratorBasedBuilder):
        VERSION = tensorflow_datasets.core.Version("1.0.0")

        def _info(self):
            features = tensorflow_datasets.features.FeaturesDict({"id": np.int64})
            return tensorflow_datasets.core.DatasetInfo(builder=self, features=features, disable_shuffling=True)

        def _split_generators(self, _):
            return {"train": self._generate_examples()}

        def _generate_examples(self):
            return ((int(number), {"id": number}) for number in NUMBERS)

    Numbers(data_dir=path.parents[1], file_format="array_record").download_and_prepare()


def write_images(path: Path, folder: str = "") -> None:
    for number in NUMBERS:
        png(path / folder / f"{number:02}.png", level(number))


def write_arrow(path: Path) -> None:
    import datasets

    datasets.Dataset.from_dict({"id": NUMBERS}).save_to_disk(str(path), num_shards=3)


def write_shards(path: Path) -> None:
    from webdataset import ShardWriter

    path.mkdir()
    with ShardWriter(f"{path}/%d.tar", maxcount=10, verbose=0) as file:
        for number in NUMBERS:
            file.write({"__key__": f"{number:02}", "cls": int(number)})


READERS = {
    "csv": Reader(
        "table.csv",
        lambda path: path.write_text("id\n" + "\n".join(map(str, NUMBERS))),
        csv,
        "id",
        r"`csv.files` is .* names no file; give a file, or a pattern",
        "core.data.csv_files",
        r"`csv.files` names 64 bytes of text, .* has 50 of memory; write .* as TFRecord",
    ),
    "parquet": Reader(
        "table.parquet",
        lambda path: pq.write_table(pa.table({"id": NUMBERS}), path, row_group_size=5),
        parquet,
        "id",
        r"`parquet.files` is .* names no file",
        "core.data.parquet_files",
        r"requested columns of .* take [0-9,]+ bytes and .* has 50 of memory; name fewer",
    ),
    "tfrecord": Reader(
        "a.tfrecord",
        write_records,
        lambda files: tfrecord(files, {"id": "int"}),
        "id",
        r"`tfrecord.files` is .* names no file",
    ),
    "hugging_face": Reader(
        "saved",
        write_arrow,
        lambda directory: hugging_face(directory, {"id": "int"}),
        "id",
        r"There is no folder .*; give one that `save_to_disk` of `datasets` made",
    ),
    "webdataset": Reader(
        "shards",
        write_shards,
        lambda folder: webdataset(f"{folder}/*.tar", {"id": "int"}, stored_as={"id": "cls"}),
        "id",
        r"`webdataset.files` is .* names no file; give a file, or a pattern",
    ),
    "array_record": Reader(
        "a.array_record",
        write_array_records,
        lambda files: array_record(files, {"id": "int"}),
        "id",
        r"`array_record.files` is .* names no file",
    ),
    "tfds": Reader(
        "numbers/1.0.0",
        prepare,
        lambda directory: tfds(directory, {"id": "int"}),
        "id",
        r"holds no `dataset_info.json`; give the folder of a version, `builder.data_dir`, such as",
    ),
    "npz": Reader(
        "data.npz",
        lambda path: np.savez(path, id=NUMBERS),
        npz,
        "id",
        r"There is no file",
        "core.data.files",
        r"the arrays `id.npy`, [0-9,]+ bytes, more than the 50 of this",
    ),
    "text_files": Reader(
        "a.txt",
        lambda path: path.write_bytes(bytes(range(1, 26)) * 2),
        lambda files: text_files(files, 2),
        "tokens",
        r"names no file of text; give a file, a folder, or a pattern",
        "core.data.corpus",
        r"50 bytes of text.*`python -m trainers.tokenize`",
    ),
    "image_folder": Reader(
        "images", write_images, lambda folder: image_folder(folder, size=4), "image", r"There is no folder"
    ),
    "labelled_folders": Reader(
        "animals",
        lambda path: write_images(path, "cat"),
        lambda folder: labelled_folders(folder, size=4),
        "image",
        r"There is no folder .* a folder of images for each class",
    ),
}
every_reader = pytest.mark.parametrize("reader", READERS.values(), ids=READERS)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.mark.parametrize(
    ("reader", "argument"), [("csv", "files"), ("npz", "path"), ("text_files", "files"), ("tfds", "directory")]
)
def test_list_in_place_of_a_path_is_refused(reader, argument):
    with pytest.raises(ConfigurationError, match=rf"`{reader}.{argument}` is \['a', 3\]; give one path as text, such"):
        READERS[reader].read(["a", 3])


@every_reader
def test_reader_is_a_resumable_source_of_what_was_written(reader, tmp_path):
    path = tmp_path / reader.name
    reader.write(path)
    source = reader.read(str(path))
    found = everything(source)[reader.feature]
    if reader.feature == "image":
        found = np.round(found[:, 0, 0, 0] * 255.0)
    if reader.feature == "tokens":
        found = found[:, 0] // 2  # windows of two tokens: 1, 3, 5, ..., twice with 25 between
        found = found[:12]
        np.testing.assert_array_equal(found, np.arange(12))
    else:
        np.testing.assert_array_equal(found, NUMBERS)
    assert_source(source)


@every_reader
def test_missing_file_is_named(reader, tmp_path):
    with pytest.raises(DataError, match=reader.missing) as error:
        reader.read(str(tmp_path / "none"))
    assert str(tmp_path / "none") in str(error.value)


@pytest.mark.parametrize("name", [name for name, reader in READERS.items() if reader.memory])
def test_file_larger_than_memory_is_refused(name, tmp_path, monkeypatch):
    reader = READERS[name]
    reader.write(tmp_path / reader.name)
    monkeypatch.setattr(f"{reader.memory}.machine_memory", lambda: 50)
    with pytest.raises(DataError, match=reader.too_large):
        reader.read(str(tmp_path / reader.name))
