"""Reads data sets that TensorFlow Datasets prepared, from their files, by number.

    Experiment.train_source = @tfds()
    tfds.directory = 'tensorflow_datasets/mnist/3.0.1'      # `builder.data_dir`
    tfds.split = 'train'
    tfds.features = {'image': ('image', 28), 'label': 'int'}

`core/data/declared.py` lists the possible declarations. A prepared data set is a folder of TFRecord or ArrayRecord
files of `tf.train.Example`s, and `dataset_info.json` lists them. The package `tensorflow_datasets` isn't needed. In the
files, a feature within another has a name such as `objects/bbox`, which is for `tfds.stored_as`.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gin

from core.arguments import listed
from core.data.array_record import ArrayRecordFile
from core.data.declared import Declared, features_of
from core.data.files import path_of, reading
from core.data.records import RecordFile, Records
from core.data.source import Source, check_split
from core.data.tfrecord_index import index_of
from core.errors import DataError

_TEMPLATE = "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"
_OLDEST = "tfrecord"  # the format of data sets that don't name theirs
_READ: dict[str, Callable[[Path], RecordFile]] = {"tfrecord": index_of, "array_record": ArrayRecordFile}
_AGAIN = "prepare the data set again with `tensorflow_datasets`, or copy it again"


@gin.configurable
def tfds(
    directory: str, features: Mapping[str, Declared], *, split: str = "train", stored_as: Mapping[str, str] = {}
) -> Source:
    """Reads the declared features of a split of a prepared data set, from the folder of one version.

    `stored_as` maps a feature to its name in the records, if that differs: `{'box': 'objects/bbox'}`.
    """
    declared = features_of("tfds", features, stored_as)
    folder = path_of(directory, "tfds.directory")
    path = folder / "dataset_info.json"
    if not path.exists():
        deeper = sorted(str(x.parent) for x in folder.glob("**/dataset_info.json"))
        raise DataError(
            f"{folder} holds no `dataset_info.json`; give the folder of a version, `builder.data_dir`"
            f"{f': {listed(deeper, most=5)}' if deeper else ', such as tensorflow_datasets/mnist/3.0.1'}."
        )
    info = _read_info(path)
    check_split("tfds", split, [x["name"] for x in info["splits"]])
    kind = info.get("fileFormat", _OLDEST)
    if kind not in _READ:
        raise DataError(
            f"{folder} has files of the format {kind!r}; {listed(_READ)} are read: prepare it with "
            "`tfds.builder(..., file_format='array_record')`."
        )
    files = []
    for name, length in _shards(path, info, split):
        file = _READ[kind](folder / name)
        if len(file) != length:
            raise DataError(
                f"{file.path} holds {len(file):,} records, but {path} says {length:,}: they are of different versions, "
                f"or one is incomplete; {_AGAIN}."
            )
        files.append(file)
    return Records("tfds", files, declared)


def _read_info(path: Path) -> dict[str, Any]:
    with reading(path, _AGAIN) as file:
        try:
            info = json.load(file)
            if all(isinstance(x["name"], str) for x in [info, *info["splits"]]):
                return dict(info)
        except (ValueError, KeyError, TypeError):
            pass
    raise DataError(f"{path} is damaged, or of a version that isn't read: it names no splits; {_AGAIN}.")


def _shards(path: Path, info: Mapping[str, Any], split: str) -> list[tuple[str, int]]:
    """Returns the name and the number of records of each file of a split."""
    (of,) = [x for x in info["splits"] if x["name"] == split]
    known = {"DATASET": info["name"], "SPLIT": split, "FILEFORMAT": info.get("fileFormat", _OLDEST)}
    template, shards = of.get("filepathTemplate") or _TEMPLATE, []
    try:
        lengths = [int(length) for length in of["shardLengths"]]
        for number, length in enumerate(lengths):
            index, count = f"{number:05}", f"{len(lengths):05}"
            places = {"SHARD_INDEX": index, "NUM_SHARDS": count, "SHARD_X_OF_Y": f"{index}-of-{count}"}
            shards.append((template.format(**known, **places), length))
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise DataError(
            f"{path} is damaged, or of a version that isn't read: it doesn't name the files of the split {split!r}; "
            f"{_AGAIN}."
        ) from error
    return shards
