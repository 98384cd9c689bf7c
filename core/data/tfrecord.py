"""Reads TFRecord files of `tf.train.Example`s by index.

    Experiment.train_source = @tfrecord()
    tfrecord.files = 'data/train-*.tfrecord'
    tfrecord.features = {'image': ('image', 64), 'label': 'int'}

`core/data/declared.py` lists the possible declarations. The first run scans the files, and stores the offsets
of their records (`core/data/tfrecord_index.py`). Then any record can be read at once. So training shuffles all records,
not only those in a buffer, and resumes without reading earlier ones. When a run first reads a record, it verifies the
checksum and the declared features.
"""

from collections.abc import Mapping

import gin

from core.data.declared import Declared, features_of
from core.data.files import list_files
from core.data.records import Records
from core.data.source import Source
from core.data.tfrecord_index import index_of


@gin.configurable
def tfrecord(files: str, features: Mapping[str, Declared], *, stored_as: Mapping[str, str] = {}) -> Source:
    """Reads the declared features of records, from one file, or from all files that match a pattern with `*`.

    `stored_as` maps a feature to its name in the records, if that differs: `{'image': 'image/encoded'}`.
    """
    declared = features_of("tfrecord", features, stored_as)
    return Records("tfrecord", [index_of(path) for path in list_files("tfrecord.files", files)], declared)
