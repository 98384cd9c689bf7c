"""Sources that read files from object storage."""

import numpy as np
import pytest

from core import storage as stored
from core.data import csv, hugging_face, webdataset
from core.data.files import list_matches
from core.errors import DataError
from core.storage import Bucket, parse_address


@pytest.fixture(autouse=True)
def _fresh(monkeypatch, tmp_path):
    """Begins with an empty cache, as a fresh process on a fresh machine."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    stored.cached.cache_clear()


def test_files_are_downloaded_once_and_again_if_they_change(storage, tmp_path):
    bucket = Bucket(parse_address("s3://bucket/data", "address"))
    for name, rows in (("a.csv", "1\n2\n"), ("b.csv", "3\n"), ("old/c.csv", "9\n"), ("b.txt", "9\n")):
        bucket.write(name, f"x\n{rows}".encode())

    for place in ("bucket/data", "bucket/data/old", "bucket/data/b"):
        storage.mark(place)

    def read():
        source = csv("s3://bucket/data/*.csv")
        return source.gather(np.arange(len(source), dtype=np.int64))["x"].numpy().tolist()

    def downloads():
        return [path for method, path in storage.requests if method == "GET" and path.endswith("csv")]

    assert read() == [1, 2, 3]
    assert set(downloads()) == {"/bucket/data/a.csv", "/bucket/data/b.csv"}
    stored.cached.cache_clear()
    assert read() == [1, 2, 3]
    assert len(downloads()) == 2
    bucket.write("b.csv", b"x\n3\n4\n")
    stored.cached.cache_clear()
    assert read() == [1, 2, 3, 4]
    assert len(downloads()) == 3
    folder = stored.cached("s3://bucket/data")
    found = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert found == {"a.csv", "b.csv", "b.txt", "old/c.csv"}
    assert len(list_matches("source", "s3://bucket/data/*")) == 3
    assert [path.name for path in list_matches("source", "s3://bucket/*/*.csv")] == ["a.csv", "b.csv"]
    Bucket(parse_address("s3://bucket/", "address", root=True)).write("top.csv", b"x\n")
    assert [path.name for path in list_matches("source", "s3://bucket/*.csv")] == ["top.csv"]


def test_objects_that_are_gone_are_read_no_more(storage):
    bucket = Bucket(parse_address("s3://bucket/data", "address"))

    def copies(*names):
        """Writes and removes objects until the bucket holds `names`. Returns the files of the copy."""
        for name in names:
            bucket.write(name, b"x\n")
        bucket.remove([name for name in bucket.objects() if name not in names])
        stored.cached.cache_clear()
        found = stored.cached("s3://bucket/data")
        return {path.relative_to(found).as_posix() for path in found.rglob("*")}

    first = ("a.csv", "b.csv", "cats/c.csv", "dogs/d.csv")
    assert copies(*first) == {*first, "cats", "dogs"}
    bucket.remove(["b.csv"])
    stored.cached.cache_clear()
    assert [path.name for path in list_matches("source", "s3://bucket/data/*.csv")] == ["a.csv"]
    assert copies("a.csv", "cats/d.csv", "dogs") == {"a.csv", "cats", "cats/d.csv", "dogs"}
    assert copies("a.csv/part", "cats", "dogs") == {"a.csv", "a.csv/part", "cats", "dogs"}


def test_folders_and_shards_are_read_by_number_from_their_copies(storage, tmp_path):
    import datasets
    from webdataset import TarWriter

    datasets.Dataset.from_dict({"x": range(5)}).save_to_disk(str(tmp_path / "saved"))
    for number in range(2):
        with TarWriter(str(tmp_path / f"{number}.tar")) as file:
            file.write({"__key__": str(number), "cls": number})
    bucket = Bucket(parse_address("s3://bucket/sets", "address"))
    for path in tmp_path.rglob("*.*"):
        if path.is_file():
            bucket.write(path.relative_to(tmp_path).as_posix(), path.read_bytes())
    saved = hugging_face("s3://bucket/sets/saved", {"x": "int"})
    shards = webdataset("s3://bucket/sets/*.tar", {"x": "int"}, stored_as={"x": "cls"})
    for source, size in ((saved, 5), (shards, 2)):
        np.testing.assert_array_equal(source.gather(np.arange(size, dtype=np.int64))["x"], np.arange(size))


def test_files_that_cannot_be_had_are_a_data_error(storage, tmp_path):
    with pytest.raises(DataError, match=r"'s3://bucket/none.csv' names no object"):
        csv("s3://bucket/none.csv")
    with pytest.raises(DataError, match=r"'s3://missing/a.csv' can't be read: The specified bucket does not exist"):
        csv("s3://missing/a.csv")
    Bucket(parse_address("s3://bucket/evil", "address")).write("../../../../../../evil.csv", b"x\n1\n")
    with pytest.raises(DataError, match=r"'s3://bucket/evil/../../../../../../evil.csv' can't be copied to a file"):
        csv("s3://bucket/evil/**/*.csv")
    assert not list(tmp_path.rglob("evil.csv"))
    storage.fault = lambda method, path: "unknown"
    with pytest.raises(DataError, match=r"'s3://bucket/a.csv' can't be read: No such key is known"):
        csv("s3://bucket/a.csv")
