"""Data sets that `datasets` saved: each kind of column is read; errors name the file, column and row."""

import json
import shutil
import sys

import numpy as np
import pytest
import tensorflow as tf
from data_lab import NOISE, everything

from core.data import hugging_face
from core.errors import ConfigurationError, DataError

PNG = tf.io.encode_png(NOISE).numpy()
ROWS = {
    "image": [{"bytes": PNG, "path": None}] * 4,
    "label": [2, 0, 1, 2],
    "tokens": [[5, 6, 7], [], [8], [9, 9]],
    "grid": [np.full([2, 3], i + 0.5) for i in range(4)],
    "raw": [np.full([2, 2, 1], 51 * i, np.uint8) for i in range(4)],
    "text": ["a", "b", None, "d"],
    "weight": [1.0, 0.5, 1e300, None],
    "good": [True, False, True, True],
    "rated": [1, None, 2, 3],
    "pairs": [[1, 2], [3, 4], [5, None], [6, 7]],
}


@pytest.fixture
def saved(tmp_path):
    import datasets  # takes two seconds

    columns = datasets.Features(
        image=datasets.Image(decode=False),
        label=datasets.ClassLabel(names=["cat", "cow", "dog"]),
        tokens=datasets.List(datasets.Value("int64")),
        grid=datasets.Array2D([2, 3], "float32"),
        raw=datasets.Array3D([2, 2, 1], "uint8"),
        text=datasets.Value("string"),
        weight=datasets.Value("float64"),
        good=datasets.Value("bool"),
        rated=datasets.Value("int64"),
        pairs=datasets.List(datasets.Value("int64")),
    )
    datasets.Dataset.from_dict(ROWS, features=columns).save_to_disk(str(tmp_path / "saved"), num_shards=2)
    return tmp_path / "saved"


def test_columns_of_each_kind_are_read(saved):
    features = {
        "picture": ("image", 8),
        "label": "int",
        "tokens": ("int", 4, -1),
        "length": ("length", "tokens"),
        "grid": ("float", [2, 3]),
        "raw": ("levels", [2, 2, 1]),
        "good": "int",
    }
    source = hugging_face(str(saved), features, stored_as={"picture": "image"})
    found = everything(source)
    assert {name: (x.dtype, list(x.shape[1:])) for name, x in found.items()} == {
        name: (spec.dtype, spec.shape) for name, spec in source.spec.items()
    }
    np.testing.assert_allclose(found["picture"], [NOISE / 255.0] * 4, atol=1e-5)
    np.testing.assert_array_equal(found["label"], ROWS["label"])
    np.testing.assert_array_equal(found["tokens"], [[5, 6, 7, -1], [-1] * 4, [8, -1, -1, -1], [9, 9, -1, -1]])
    np.testing.assert_array_equal(found["length"], [3, 0, 1, 2])
    np.testing.assert_array_equal(found["grid"], ROWS["grid"])
    np.testing.assert_allclose(found["raw"], np.array(ROWS["raw"]) / 255.0, rtol=1e-6)
    np.testing.assert_array_equal(found["good"], [1, 0, 1, 1])
    np.testing.assert_array_equal(source.values("label"), ROWS["label"])
    assert source.extremes("label") == (0, 1, 2, 0)
    assert source.extremes("grid") is None


def test_a_split_is_named(saved, tmp_path):
    import datasets

    whole = datasets.load_from_disk(str(saved))
    datasets.DatasetDict(train=whole, test=whole.select([2, 1])).save_to_disk(str(tmp_path / "splits"))
    found = everything(hugging_face(str(tmp_path / "splits"), {"label": "int"}, split="test"))
    np.testing.assert_array_equal(found["label"], [1, 0])
    for directory, split, message in [
        ("splits", "tset", "`hugging_face.split` is 'tset'; .* has `train`, `test`. Did you mean `test`?"),
        ("splits", None, "`hugging_face.split` is None; .* has `train`, `test`"),
        ("saved", "train", "`hugging_face.split` is 'train', but .* holds one data set without splits; leave it out"),
    ]:
        with pytest.raises(ConfigurationError, match=message):
            hugging_face(str(tmp_path / directory), {"label": "int"}, split=split)


@pytest.mark.parametrize(
    ("features", "message"),
    [
        ({"lable": "int"}, "reads the column `lable`, which .*arrow doesn't have; .* Did you mean `label`?"),
        ({"text": "int"}, "`text` of row 0 of .*00000-of-00002.arrow is text, but `hugging_face.features` says 'int'"),
        ({"label": "float", "grid": ("float", 5)}, "`grid` of row 0 of .* has 6 values, but .* says 5"),
        ({"label": ("image", 8)}, "`label` of row 0 of .* is integers, but .* says 'image'"),
        ({"weight": "int"}, "`weight` of row 0 of .* is floats, but .* says 'int'"),
        ({"rated": "int"}, "`rated` of row 1 of .*00000-of.* is empty, but `hugging_face.features` says 'int'"),
        ({"pairs": ("int", 2)}, r"`pairs` of row 0 of .*00001-of-00002.arrow is \[5, None\], but .* says 'int'"),
        ({"weight": "float"}, r"`weight` of row 0 of .*00001-of-00002.arrow holds 1e\+300, which doesn't fit"),
    ],
)
def test_a_column_that_is_not_as_declared_is_named(saved, features, message):
    with pytest.raises(DataError, match=message):
        everything(hugging_face(str(saved), features))


def _without_end(folder):
    path = folder / "data-00001-of-00002.arrow"
    path.write_bytes(path.read_bytes()[:-8])


def _cut(folder):
    path = folder / "data-00001-of-00002.arrow"
    path.write_bytes(path.read_bytes()[:-900])


def _emptied(folder):
    import datasets

    shutil.rmtree(folder)
    datasets.Dataset.from_dict({"label": []}).save_to_disk(str(folder))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (_without_end, r"00001-of-00002.arrow is cut off: it doesn't end with the mark of a complete stream"),
        (_cut, r"00001-of-00002.arrow can't be read as a stream of Arrow: .*; save it again"),
        (lambda x: (x / "data-00000-of-00002.arrow").write_bytes(b"PAR1" * 9), "00000-of-00002.arrow can't be read as"),
        (lambda x: (x / "data-00000-of-00002.arrow").unlink(), "00000-of-00002.arrow can't be read: No such file"),
        (lambda x: (x / "state.json").unlink(), "saved holds no `state.json`, so it isn't a saved data set"),
        (lambda x: (x / "state.json").write_text("{"), "state.json isn't JSON .*: it is damaged"),
        (lambda x: (x / "state.json").write_text("[]"), r"state.json holds \[\] in place of an object"),
        (
            lambda x: (x / "state.json").write_text(json.dumps({"_data_files": None, "_fingerprint": "0"})),
            "state.json is damaged, or of a version of `datasets` that isn't read: load the data set",
        ),
        (_emptied, "The source `hugging_face` is empty: .*saved holds no example"),
    ],
    ids=range(9),
)
def test_damage_is_named(saved, damage, message):
    damage(saved)
    with pytest.raises(DataError, match=message):
        hugging_face(str(saved), {"label": "int"})


def test_missing_package_is_named_with_its_extra(saved, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow.ipc", None)
    with pytest.raises(ConfigurationError, match=r"`pyarrow`, which Arrow .*`pip install -e '.\[parquet\]'`"):
        hugging_face(str(saved), {"label": "int"})
