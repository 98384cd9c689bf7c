"""Tables as text: conversion of numbers and words; errors name the file and the line."""

import numpy as np
import pytest
from data_lab import check, everything

from core.data import csv
from core.errors import ConfigurationError, DataError

FLOWERS = "width,height,species\n1,0.5,cat\n2,1.5,dog\n-3,2,cat\n"
SPECIES = {"species": ["cat", "dog"]}


@pytest.fixture
def table(tmp_path):
    """Writes a file and reads it."""

    def read(text, name="table.csv", **arguments):
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return csv(arguments.pop("files", str(path)), **arguments)

    return read


def test_whole_numbers_other_numbers_and_words(table):
    check(table(FLOWERS, types=SPECIES), width=[1, 2, -3], height=[0.5, 1.5, 2.0], species=[0, 1, 0])
    check(table(FLOWERS, columns=["height", "width"]), height=[0.5, 1.5, 2.0], width=[1, 2, -3])
    check(table(FLOWERS, columns=["width"], types={"width": "float"}), width=[1.0, 2.0, -3.0])
    vectors = {"x": ["height", "width"]}
    x = [[0.5, 1.0], [1.5, 2.0], [2.0, -3.0]]
    check(table(FLOWERS, vectors=vectors, types=SPECIES), species=[0, 1, 0], x=x)
    check(table(FLOWERS, vectors=vectors, columns=[]), x=x)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a,b\r\n1,2\r\n3,4\r\n", {"a": [1, 3], "b": [2, 4]}),
        ("\ufeffa,b\n1,2", {"a": [1], "b": [2]}),
        ("a,b\n\n1,2\n\n\n3,4\n\n", {"a": [1, 3], "b": [2, 4]}),
        ('"a","b, or c"\n"1","2"\n', {"a": [1], "b, or c": [2]}),
        ('a,"two\nlines"\n1,2\n', {"a": [1], "two\nlines": [2]}),
        ("größe\n1e3\n-.5\n", {"größe": [1000.0, -0.5]}),
        ("a\n+1\n 2 \n", {"a": [1, 2]}),
        ("a\n2147483647\n-2147483648\n", {"a": [2147483647, -2147483648]}),
    ],
)
def test_ways_to_write_a_table(table, text, expected):
    check(table(text), **expected)


def test_words_may_hold_separators_quotes_and_lines(table):
    words = ["a,b", 'say "x"', "two\nlines", ""]
    text = 'w\n"two\nlines"\n"say ""x"""\n"a,b"\n""\n'
    check(table(text, types={"w": words}), w=[2, 1, 0, 3])


def test_semicolons_and_tabs(table):
    for separator in ";\t":
        check(table(FLOWERS.replace(",", separator), separator=separator, columns=["width"]), width=[1, 2, -3])


def test_missing_values_are_filled_in(table):
    text = "a,b,c\n,NaN,\n1,2.5,dog\nNA,null,cat\n"
    fill = {"a": -1, "b": 0.25, "c": "cat"}
    check(table(text, types={"c": ["cat", "dog"]}, fill=fill), a=[-1, 1, -1], b=[0.25, 2.5, 0.25], c=[0, 1, 0])


def test_many_files_are_one_table_in_the_order_of_their_names(table, tmp_path):
    table("a,b\n3,0.5\n", name="2.csv")
    table("a,b\n1,2\n", name="1.csv")
    check(csv(str(tmp_path / "*.csv")), a=[1, 3], b=[2.0, 0.5])  # a column is of integers only if it is in all files


def test_a_long_table_is_read_in_pieces(table):
    count = (1 << 12) + 10
    lines = [f"{i},{i if i < count - 1 else 0.5}" for i in range(count)]
    found = everything(table("i,x\n" + "\n".join(lines)))
    np.testing.assert_array_equal(found["i"], np.arange(count))
    np.testing.assert_array_equal(found["x"], [*range(count - 1), 0.5])
    with pytest.raises(DataError, match=f"`x` is 'oh' in line {count + 2} of "):
        table("i,x\n" + "\n".join([*lines, "1,oh"]))


@pytest.mark.parametrize(
    ("text", "arguments", "message"),
    [
        (FLOWERS, {}, r"`species` is 'cat' in line 2 of .*table.csv, which is no number.*'species': \['cat', 'dog'\]"),
        (FLOWERS, {"types": {"species": ["cat", "cow"]}}, "`species` is 'dog' in line 3 .* words, `cat`, `cow`"),
        (FLOWERS, {"columns": ["widht"]}, "`csv.columns` names the column `widht`, .* Did you mean `width"),
        (FLOWERS, {"types": {"specie": "int"}}, "`csv.types` names the column `specie`.* Did you mean `species`"),
        (FLOWERS, {"vectors": {"x": ["width", "length"]}}, "`csv.vectors` names the column `length`, which line 1 of"),
        (FLOWERS, {"fill": {"colour": 1}}, "`csv.fill` names the column `colour`, which line 1 of"),
        (FLOWERS, {"types": {"height": "int", **SPECIES}}, "`height` is '0.5' in line 2 .* no whole number"),
        (FLOWERS, {"types": {"species": "float"}}, "`species` is 'cat' in line 2 of .* no number, as `csv.types` says"),
        ("a,b\n1,2\n1,2,3\n", {}, "Line 3 of .*table.csv has 3 values, and its first line 2 names"),
        ('a,b\n"1\n2",\n3\n', {}, "Line 4 of .* has 1 values"),
        ('a\n"1\n2\n3\n', {}, "The row that begins in line 2 of .* a quote in it isn't closed"),
        ('a\n"1"2\n', {}, "The row that begins in line 2 of .*can't be read"),
        ("a\n1\n" + "2" * 200_000, {}, "The row that begins in line 3 of .*field larger than field limit"),
        ("a,b\n1,\n", {}, r"`b` has no value \(''\) in line 2 of .*`csv.fill = {'b': 0}`"),
        ("a\n1\nNaN\n", {}, r"`a` has no value \('NaN'\) in line 3 of"),
        ("a,b\n1,\n", {"types": {"b": ["yes"]}}, r"`b` has no value \(''\) in line 2 .*`csv.fill = {'b': 'yes'}`"),
        ("a\n1\ninf\n", {}, "`a` is 'inf' in line 3 of .*, inf, which is beyond what steps compute with"),
        ("a\n1\n1e999\n", {}, "`a` is '1e999' in line 3 of .*, inf, which is beyond"),
        ("a\n1" + "0" * 30, {}, r"in line 2 of .*, 1e\+30, which is beyond"),
        ("a\n0.5\n1e39\n", {}, r"`a` is '1e39' in line 3 of .*, 1e\+39, which is beyond"),
        (b"\x1f\x8b\x08", {}, r"table.csv is compressed \(GZIP\), and no text; unpack it"),
        (b"PK\x03\x04", {}, "table.csv is a ZIP file, as spreadsheets are"),
        ("a\n3000000000\n", {}, "`a` of the source `csv` holds 3000000000, which doesn't fit into int32"),
        ("a\n1_000\n", {}, "`a` is '1_000' in line 2 of .* which is no number"),
        ("a;b\n1;2\n", {}, r"Line 1 of .* is one name, 'a;b', with ',' between columns: set `csv.separator = ';'`"),
        ("a\tb\n1\t2\n", {}, r"set `csv.separator = '\\t'`"),
        ("a,b,a\n1,2,3\n", {}, "Line 1 of .* has the name `a` twice"),
        ("a,,b\n1,2,3\n", {}, "Line 1 of .* has no name for column 2"),
        ("1,2.5\n3,4\n", {}, "Line 1 of .* holds numbers, `1`, `2.5`, where the names of the columns belong"),
        ("", {}, "table.csv is empty; its first line holds the names"),
        ("a,b\n", {}, "The source `csv` is empty: .*table.csv has a line of names and no row"),
        ("a\n1\nb\xe9\n".encode("latin-1"), {}, "Line 3 of .* isn't UTF-8 .byte e9 at place 2.*iconv"),
        (FLOWERS.encode("utf-16"), {}, "table.csv is UTF-16; save it as UTF-8"),
    ],
)  # fmt: skip
def test_unreadable_value_is_named_with_its_line(table, text, arguments, message):
    with pytest.raises(DataError, match=message):
        table(text, **arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"separator": "|"}, r"`csv.separator` is '\|'; give ',', ';' or a tab"),
        ({"types": {"a": "text"}}, "`csv.types` says 'text' for `a`; give 'int', 'float', or a list"),
        ({"types": {"a": ["x", "x"]}}, "lists the words .* for `a`; give each of them once"),
        ({"types": {"a": []}}, "lists the words"),
        ({"types": {"a": [1, 2]}}, r"lists \[1, 2\] for `a`; words are texts: give \['1', '2'\], or 'int'"),
        ({"types": {"a": "int"}, "fill": {"a": 0.5}}, "`csv.fill` says 0.5 for `a`, and `csv.types` 'int'; give a wh"),
        ({"columns": "ab"}, "`csv.columns` is 'ab'; give a list of columns"),
        ({"columns": ["a", 3]}, r"`csv.columns` is \['a', 3\]; give a list of columns"),
        ({"types": {"a": 3}}, "`csv.types` says 3 for `a`; give 'int', 'float', or a list"),
        ({"vectors": {"x": 3}}, "`csv.vectors` says 3 for `x`; give a list of columns"),
        ({"columns": []}, r"`csv.columns` is \[\]; give a list of columns"),
        ({"fill": {"a": "x"}}, "`csv.fill` says 'x' for `a`; give a finite number"),
        ({"fill": 0}, "`csv.fill` is 0; give a dictionary"),
        ({"fill": {"a": "z"}, "types": {"a": ["x", "y"]}}, "`csv.fill` says 'z' for `a`; .* words, `x`, `y`"),
        ({"vectors": {"x": "a"}}, "`csv.vectors` says 'a' for `x`; give a list of columns"),
        ({"vectors": {"b": ["a"]}}, "`csv.vectors` makes a feature `b`, and there is a column of that name"),
    ],
)  # fmt: skip
def test_contradicting_settings_are_refused(table, arguments, message):
    with pytest.raises(ConfigurationError, match=message):
        table("a,b\n1,2\n", **arguments)


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ("a", r"line 1 of .*2.csv lacks `b`, compared with line 1 of .*1.csv"),
        ("a,b,c", r"2.csv has `c` besides, compared"),
        ("b,a", "has the same columns in another order"),
        ("a,d", "lacks `b` and has `d` besides"),
    ],
)
def test_a_changed_header_is_named(table, tmp_path, header, message):
    table("a,b\n1,2\n", name="1.csv")
    with pytest.raises(DataError, match=message):
        table(header + "\n", name="2.csv", files=str(tmp_path / "*.csv"))


def test_folder_is_refused(tmp_path):
    with pytest.raises(DataError, match="is a folder; give a file, or a pattern"):
        csv(str(tmp_path))


def test_a_link_to_nothing_is_named(tmp_path):
    (tmp_path / "gone.csv").symlink_to(tmp_path / "nowhere")
    with pytest.raises(DataError, match=r"`csv.files` names .*gone.csv, a link to a file that isn't there"):
        csv(str(tmp_path / "*.csv"))
