"""Tables as Parquet: conversion of columns; errors name file, column and row."""

import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from data_lab import check, everything

from core.data import csv, parquet
from core.errors import ConfigurationError, DataError

WORDS = ["cat", "dog"]


@pytest.fixture
def table(tmp_path):
    """Writes a file, in groups of two rows, and reads it."""

    def read(data, /, name="table.parquet", **arguments):
        path = tmp_path / name
        pq.write_table(pa.table(data), path, row_group_size=2)
        return parquet(arguments.pop("files", str(path)), **arguments)

    return read


def test_columns_are_features(table):
    columns = {
        "whole": pa.array([1, -2, 3], pa.int64()),
        "small": pa.array([1, 2, 3], pa.uint8()),
        "float": pa.array([0.5, 1.5, 2.0], pa.float64()),
        "half": pa.array(np.float16([0.5, 1.5, 2.0])),
        "truth": [True, False, True],
        "list": [[1, 2], [3, 4], [5, 6]],
        "fixed": pa.array([[0.5], [1.5], [2.5]], pa.list_(pa.float32(), 1)),
        "word": ["dog", "cat", "dog"],
        "coded": pa.array(["dog", "cat", "dog"]).dictionary_encode(),
        "large": pa.array(["dog", "cat", "dog"], pa.large_string()),
    }
    source = table(columns, types={"word": WORDS, "coded": WORDS, "large": WORDS, "small": "float"})
    check(
        source,
        whole=[1, -2, 3],
        small=[1.0, 2.0, 3.0],
        float=[0.5, 1.5, 2.0],
        half=[0.5, 1.5, 2.0],
        truth=[True, False, True],
        list=[[1, 2], [3, 4], [5, 6]],
        fixed=[[0.5], [1.5], [2.5]],
        word=[1, 0, 1],
        coded=[1, 0, 1],
        large=[1, 0, 1],
    )


def test_columns_are_chosen_and_put_side_by_side(table):
    columns = {"a": [1, 2], "b": [0.5, 1.5], "c": ["x", "y"]}
    check(table(columns, columns=["a"], vectors={"v": ["b", "a"]}), v=[[0.5, 1.0], [1.5, 2.0]])
    check(table(columns, columns=["b"]), b=[0.5, 1.5])


def test_missing_values_are_filled_in(table):
    columns = {"a": [1, None, 3], "b": [None, 0.5, 1.0], "c": [None, "dog", "cat"]}
    filled = table(columns, types={"c": WORDS}, fill={"a": -1, "b": 0.25, "c": "dog"})
    check(filled, a=[1, -1, 3], b=[0.25, 0.5, 1.0], c=[1, 1, 0])


def test_many_files_are_one_table_and_say_the_same_as_text(table, tmp_path):
    table({"a": [3, 4, 5], "b": [0.5, 1.0, 1.5], "c": ["cat", "dog", "cat"]}, name="2.parquet", types={"c": WORDS})
    table({"a": [1], "b": [2.0], "c": ["dog"]}, name="1.parquet", types={"c": WORDS})
    (tmp_path / "same.csv").write_text("a,b,c\n1,2,dog\n3,.5,cat\n4,1,dog\n5,1.5,cat\n")
    text = everything(csv(str(tmp_path / "same.csv"), types={"c": WORDS}))
    check(parquet(str(tmp_path / "*.parquet"), types={"c": WORDS}), **text)


def lists(*rows):
    return {"a": pa.array(rows, pa.list_(pa.int64()))}


@pytest.mark.parametrize(
    ("columns", "arguments", "message"),
    [
        ({"a": [1]}, {"columns": ["b"]}, "`parquet.columns` names the column `b`, which .*table.parquet doesn't have"),
        ({"a": ["x"]}, {}, "`a` is string in .*table.parquet, which is no number; list its words in `parquet.types`"),
        ({"a": [b"x"]}, {}, "`a` is binary in .* which is no number; make numbers of it"),
        ({"a": [{"x": 1}]}, {}, "`a` is struct<.*> in .* which is no number"),
        ({"a": pa.array([1], pa.timestamp("ms"))}, {}, r"`a` is timestamp\[ms\] in .* which is no number"),
        ({"a": [1.5]}, {"types": {"a": "int"}}, "`a` is double in .* and `parquet.types` says 'int'"),
        ({"a": [1]}, {"types": {"a": WORDS}}, "`a` is int64 in .* but `parquet.types` lists words for it"),
        ({"a": ["cat", "cow"]}, {"types": {"a": WORDS}}, "`a` is 'cow' in row 1 of .* its words, `cat`, `dog`"),
        ({"a": [1, None, None]}, {}, "`a` has no value in row 1 of .* and in 1 more; .*`parquet.fill = {'a': 0}`"),
        ({"a": [1, None]}, {}, "`a` has no value in row 1 of .*table.parquet; say what stands"),
        ({"a": ["dog", None]}, {"types": {"a": WORDS}}, "`parquet.fill = {'a': 'cat'}`, or leave such rows out"),
        (lists([1, 2], None), {}, "`a` has no value in row 1 of .*table.parquet; leave such rows out"),
        ({"a": [1.0, 1e300]}, {}, r"`a` of the source `parquet` holds 1e\+300, which doesn't fit into float32"),
        ({"": [1]}, {}, "table.parquet has no name for column 1"),
        (lists([1, 2], [3]), {}, "`a` is a list of 1 in row 1 of .* but of 2 in row 0"),
        (lists([1, 2], [3, None]), {}, "`a` has no value within the list of row 1"),
        (lists([1, 2]), {"vectors": {"v": ["a"]}}, "`parquet.vectors` names `a`, which is a list in each row"),
        ({"a": [[[1]]]}, {}, "`a` is list<.*> in .* which is no number"),
        ({"a": [1 << 40]}, {}, "`a` of the source `parquet` holds 1099511627776, which doesn't fit into int32"),
        ({"a": pa.array([], pa.int64())}, {}, "The source `parquet` is empty"),
    ],
)
def test_unreadable_value_is_named_with_its_row(table, columns, arguments, message):
    with pytest.raises(DataError, match=message):
        table(columns, **arguments)


def test_damaged_file_is_refused(table, tmp_path):
    table({"a": list(range(1000))})
    content = (tmp_path / "table.parquet").read_bytes()
    for damaged in (b"", b"a,b\n1,2\n", content[:-100], content[:4] + bytes(200) + content[204:]):
        (tmp_path / "damaged.parquet").write_bytes(damaged)
        with pytest.raises(
            DataError, match=r"damaged.parquet can't be read as Parquet: .*; write or download it again"
        ):
            parquet(str(tmp_path / "damaged.parquet"))


def test_a_column_that_stands_twice_is_refused(tmp_path):
    pq.write_table(pa.Table.from_arrays([pa.array([1])] * 2, ["a", "a"]), tmp_path / "twice.parquet")
    with pytest.raises(DataError, match=r"twice.parquet has the name `a` twice"):
        parquet(str(tmp_path / "twice.parquet"))


def test_a_page_whose_check_sum_is_another_is_damaged(tmp_path):
    path = tmp_path / "damaged.parquet"
    plain = {"compression": None, "use_dictionary": False, "write_page_checksum": True}
    pq.write_table(pa.table({"a": list(range(1000))}), path, **plain)
    content = bytearray(path.read_bytes())
    content[4000] ^= 1
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"damaged.parquet can't be read as Parquet: .*checksum"):
        parquet(str(path))


def test_files_of_different_tables_are_refused(table, tmp_path):
    table({"a": [[1, 2]]}, name="1.parquet")
    table({"a": [[1, 2, 3]]}, name="2.parquet")
    with pytest.raises(DataError, match=r"`a` has shape \[3\] in each row of .*2.parquet, but \[2\] in .*1.parquet"):
        parquet(str(tmp_path / "*.parquet"))
    with pytest.raises(DataError, match=r"3.parquet lacks `a` and has `b` besides, compared with .*1.parquet"):
        table({"b": [1]}, name="3.parquet", files=str(tmp_path / "*.parquet"))


def test_a_value_of_another_kind_fills_nothing(table):
    with pytest.raises(ConfigurationError, match=r"`parquet.fill` says 0\.5 for `a`, which is int64 in"):
        table({"a": [1, None]}, fill={"a": 0.5})


def test_missing_package_is_named_with_its_extra(table, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(ConfigurationError, match=r"`pyarrow`, which Parquet needs, .*`pip install -e '.\[parquet\]'`"):
        table({"a": [1]})
