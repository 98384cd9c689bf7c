"""Shards of WebDataset: members of each kind are read by number; errors name the file, sample and member."""

import io
import os
import tarfile

import numpy as np
import pytest
import tensorflow as tf
from data_lab import NOISE, everything

from core.data import bad_example, unreadable_image, webdataset
from core.data.tar_index import TarFile
from core.errors import DataError

PNG = tf.io.encode_png(NOISE).numpy()
LABEL = {"label": "int"}
CLS = {"label": "cls"}


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def write(path, samples):
    from webdataset import TarWriter

    with TarWriter(str(path)) as file:
        for key, members in samples.items():
            file.write({"__key__": key, **members})
    return path


def npy(values, dtype=None):
    content = io.BytesIO()
    np.save(content, np.array(values, dtype))
    return content.getvalue()


def numbered(first, count):
    return {f"{i:03}": {"cls": i, "txt": f"number {i}"} for i in range(first, first + count)}


def test_members_of_each_kind_are_read(tmp_path):
    samples = {
        f"folder/{i}{'é' * 99 * i}": {
            "png": PNG,
            "seg.PNG": PNG,
            "cls": i,
            "json": {"age": i + 0.5, "boxes": {"first": [i, 2]}},
            "npy": np.arange(6.0).reshape(2, 3) + i,
            "txt": f" {10 * i}\n",
            "raw": bytes([51, 102]),
        }
        for i in range(3)
    }
    features = {
        "png": ("image", 8),
        "mask": ("image", 8),
        "label": "int",
        "age": "float",
        "box": ("int", 3, -1),
        "length": ("length", "box"),
        "npy": ("float", [2, 3]),
        "txt": "int",
        "raw": ("levels", 2),
    }
    stored_as = {"mask": "seg.png", "label": "cls", "age": "json/age", "box": "json/boxes/first"}
    source = webdataset(str(write(tmp_path / "a.tar", samples)), features, stored_as=stored_as)
    found = everything(source)
    np.testing.assert_allclose(found["png"], [NOISE / 255.0] * 3, atol=1e-5)
    np.testing.assert_array_equal(found["mask"], found["png"])
    np.testing.assert_array_equal(found["label"], [0, 1, 2])
    np.testing.assert_array_equal(found["age"], [0.5, 1.5, 2.5])
    np.testing.assert_array_equal(found["box"], [[0, 2, -1], [1, 2, -1], [2, 2, -1]])
    np.testing.assert_array_equal(found["length"], [2, 2, 2])
    np.testing.assert_array_equal(found["npy"], np.arange(6.0).reshape(2, 3) + np.arange(3)[:, None, None])
    np.testing.assert_array_equal(found["txt"], [0, 10, 20])
    np.testing.assert_allclose(found["raw"], [[0.2, 0.4]] * 3, rtol=1e-6)
    np.testing.assert_array_equal(source.values("age"), found["age"])


def test_samples_are_those_of_webdataset(tmp_path):
    from webdataset import WebDataset

    path = tmp_path / "a.tar"
    names = ["b.cls", "folder/b.cls", "folder/b.x.y", "._b.cls", "README", "a.b/c.cls", "b.cls", "d.CLS"]
    with tarfile.open(path, "w") as file:
        for name in names:
            member = tarfile.TarInfo(name)
            member.size = 1
            file.addfile(member, io.BytesIO(b"1"))
        folder = tarfile.TarInfo("folder.cls")
        folder.type = tarfile.DIRTYPE
        file.addfile(folder)
    ours = TarFile(path)
    peer = [(x["__key__"], {k for k in x if not k.startswith("__")}) for x in WebDataset(str(path), shardshuffle=False)]
    assert [(ours.keys[i], set(ours.extensions_of(i))) for i in range(len(ours))] == peer


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_members_are_those_of_pythons_tarfile(tmp_path, form):
    path, samples = tmp_path / "a.tar", {}
    with tarfile.open(path, "w", format=form, pax_headers={"comment": "global"}) as file:
        for number, length in enumerate([1, 90, 120, 240]):
            member = tarfile.TarInfo(f"{'a/' * 20}{'b' * min(length, 90)}{'/c' * (length > 90)}{'é'}{number}.txt")
            if form != tarfile.USTAR_FORMAT:
                member = member.replace(name=f"{'d' * length}/{member.name}", deep=False)
            member.size, member.mtime = 300 * number, number + 0.5 * (form == tarfile.PAX_FORMAT)
            file.addfile(member, io.BytesIO(bytes([number]) * member.size))
        link = tarfile.TarInfo("link.txt")
        link.type, link.linkname = tarfile.SYMTYPE, "e" * (150 * (form != tarfile.USTAR_FORMAT) + 1)
        file.addfile(link)
        file.addfile(tarfile.TarInfo("empty.txt"))
    with tarfile.open(path) as file:
        samples = {member.name[:-4]: [member.offset_data, member.size] for member in file if member.isreg()}
    ours = TarFile(path)
    assert dict(zip(ours.keys, ours.places[:, 0].tolist(), strict=True)) == samples
    assert len(samples) == 5


def test_index_is_made_once_and_anew_if_the_file_has_changed(tmp_path, monkeypatch):
    path = write(tmp_path / "a.tar", numbered(0, 5))
    webdataset(str(path), LABEL, stored_as=CLS)
    with monkeypatch.context() as patch:
        patch.setattr("core.data.tar_index._walked", None)  # which isn't called again
        np.testing.assert_array_equal(everything(webdataset(str(path), LABEL, stored_as=CLS))["label"], np.arange(5))
    write(path, numbered(5, 7))
    np.testing.assert_array_equal(everything(webdataset(str(path), LABEL, stored_as=CLS))["label"], np.arange(5, 12))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (
            lambda x: x[: x.index(b"004.txt") + 1024],
            "a.tar is cut off: it has no mark of its end behind its last whole",
        ),
        (lambda x: x[: x.index(b"002.cls") + 300], "a.tar is cut off: it has no mark of its end behind its last whole"),
        (lambda x: x[: x.index(b"002.cls") + 600], "a.tar is cut off: it ends within a member"),
        (lambda x: x.replace(b"002.cls", b"002.clt", 1), "a.tar is damaged at byte [0-9,]+, where a member or the end"),
        (lambda x: x + x, "a.tar has other content behind its end, .* as after `cat a.tar b.tar`"),
        (lambda x: b"", "a.tar isn't a tar file: it has 0 bytes"),
        (lambda x: b"no tar" * 200, "a.tar isn't a tar file: it begins with 6e 6f 20 74"),
        (lambda x: b"\x1f\x8b" + x, r"a.tar is compressed \(GZIP\)"),
    ],
    ids=range(8),
)
def test_damage_is_named(tmp_path, damage, message):
    path = write(tmp_path / "a.tar", numbered(0, 5))
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(DataError, match=message):
        webdataset(str(path), LABEL, stored_as=CLS)


def test_member_that_is_in_a_sample_twice_is_refused(tmp_path):
    with tarfile.open(tmp_path / "a.tar", "w") as file:
        for name in ("0.cls", "0.txt", "0.CLS"):
            file.addfile(tarfile.TarInfo(name))
    with pytest.raises(DataError, match=r"^`0\.CLS` of .*a\.tar is in its sample twice; write the file again"):
        webdataset(str(tmp_path / "a.tar"), LABEL, stored_as=CLS)


@pytest.mark.parametrize(
    ("samples", "features", "stored_as", "message"),
    [
        ({"a": {"cls": 1}, "b": {"txt": "c"}}, LABEL, CLS, "sample `b` of .*a.tar has no member `.cls`, .* has `txt`"),
        (numbered(0, 2), LABEL, {"label": "csl"}, "sample `000` of .* has no member `.csl`, .* Did you mean `cls`?"),
        (numbered(0, 2), {"txt": "int"}, {}, "`txt` of sample `000` of .* is text, but `webdataset.features` says"),
        ({"a": {"json": {"x": 1}}}, {"y": "int"}, {"y": "json/y"}, "`json/y` names `y`, .* have: it has `x`"),
        ({"a": {"json": [1]}}, {"y": "int"}, {"y": "json/y"}, "`json/y` names `y`, .* have: it isn't a JSON object"),
        ({"a": {"json": {"x": None}}}, {"y": "int"}, {"y": "json/x"}, "`json/x` of sample `a` of .* is empty, but"),
        ({"a": {"json": {"x": 1}}}, {"y": "int"}, {"y": "json"}, "`json` of sample `a` of .* is {'x': 1}, but"),
        ({"a": {"cls": 10**30}}, LABEL, CLS, "`cls` of sample `a` of .* is 10{30}, beyond 64 bits, but .* says 'int'"),
        ({"a": {"json": b"{"}}, {"y": "int"}, {"y": "json/y"}, "`.json` of sample `a` of .* can't be decoded"),
        ({"a": {"npy": b"\x93NUMPY"}}, {"npy": "int"}, {}, "`.npy` of sample `a` of .* can't be decoded"),
        ({"a": {"npy": npy([1])[:-1]}}, {"npy": "int"}, {}, "`.npy` of sample `a` of .* has 135 bytes, but says"),
        ({"a": {"npy": npy([[]], object)}}, {"npy": "int"}, {}, "`.npy` of sample `a` .* holds pickled objects"),
        ({"a": {"pyd": [1]}}, {"pyd": "int"}, {}, "`pyd` of sample `a` of .* is bytes, but"),
        ({}, LABEL, CLS, "The source `webdataset` is empty"),
    ],
    ids=range(14),
)
def test_a_sample_that_is_not_as_declared_is_named_before_the_run(tmp_path, samples, features, stored_as, message):
    with pytest.raises(DataError, match=message):
        webdataset(str(write(tmp_path / "a.tar", samples)), features, stored_as=stored_as)


def test_a_fault_of_a_later_sample_is_named_in_a_graph(tmp_path):
    path = write(tmp_path / "a.tar", {"a": {"png": PNG, "cls": 1}, "b": {"png": PNG[:60], "cls": 1 << 40}})

    def said(**features):
        source = webdataset(str(path), features)
        (error,) = [_error(source)]
        return str(bad_example(error) or unreadable_image(error))

    assert "sample `b` of" in said(png=("image", 8))
    assert "can't be read or decoded as an image" in said(png=("image", 8))
    assert "`cls` of sample `b` of" in said(cls="int")
    assert "holds 1099511627776, which doesn't fit into int32" in said(cls="int")
    source = webdataset(str(path), {"cls": "int"})
    os.utime(path, ns=(0, 0))
    assert "has changed since the run began" in str(bad_example(_error(source)))


def _error(source):
    with pytest.raises(tf.errors.OpError) as error:
        list(tf.data.Dataset.range(1, 2).batch(1).map(source.gather))
    return str(error.value)
