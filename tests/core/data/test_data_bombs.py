"""Files that claim more than they hold, hold more than they claim, or never end are refused before memory fills."""

import gzip
import io
import os
import socket
import struct
import tracemalloc
import zipfile
import zlib

import numpy as np
import pytest
import tensorflow as tf
from data_lab import NOISE, everything, png

from core.data import files, image_folder, image_headers, mnist, npz
from core.data.idx import read_idx
from core.data.image_headers import image_size
from core.errors import DataError

JPEG = tf.io.encode_jpeg(np.zeros([40, 50, 3], np.uint8)).numpy()
PNG = tf.io.encode_png(NOISE).numpy()
MEBIBYTE = 2**20


def idx_header(*shape):
    return struct.pack(f">HBB{len(shape)}I", 0, 8, len(shape), *shape)


def gzip_of(head, mebibytes):
    """Returns a gzip file of `head` and so many MiB of zeros, compressed to a thousandth."""
    content = io.BytesIO()
    with gzip.GzipFile(fileobj=content, mode="wb", mtime=0) as file:
        file.write(head)
        for _ in range(mebibytes):
            file.write(bytes(MEBIBYTE))
    return content.getvalue()


def refused(call, message):
    """Expects a `DataError` with this text, and little memory allocated in Python before it."""
    tracemalloc.start()
    try:
        with pytest.raises(DataError, match=message) as error:
            call()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 10 * MEBIBYTE
    assert error.value.exit_code == 4


def a_pipe(path):
    os.mkfifo(path)
    return r"a pipe \(FIFO\)"


def a_socket(path):
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
    return "a socket"


def a_device(path):
    path.symlink_to("/dev/zero")
    return "a device"


@pytest.mark.parametrize("make", [a_pipe, a_socket, a_device])
@pytest.mark.parametrize("name", ["t10k-images-idx3-ubyte", "t10k-images-idx3-ubyte.gz", "x.npz", "x.png"])
def test_pipe_socket_and_device_are_refused(tmp_path, monkeypatch, make, name):
    monkeypatch.chdir(tmp_path)  # the path of a socket is short
    (tmp_path / "t10k-labels-idx1-ubyte").write_bytes(idx_header(0))
    what = make(tmp_path.relative_to(tmp_path) / name)
    read = {".npz": lambda: npz(name), ".png": lambda: image_folder(str(tmp_path), size=4)}.get(
        os.path.splitext(name)[1], lambda: mnist(str(tmp_path), "test")
    )
    refused(read, f"{name} is {what} and no file of data")


@pytest.mark.long
def test_gzip_is_read_no_further_than_its_header_says(tmp_path):
    path = tmp_path / "x.gz"
    path.write_bytes(gzip_of(idx_header(10), 64))
    refused(lambda: read_idx(path, axes=1), r"says that it holds 10 = 10 values, but more bytes follow its header")
    path.write_bytes(gzip.compress(idx_header(3) + b"ab") + gzip.compress(b"c") + gzip.compress(b""))
    assert bytes(read_idx(path, axes=1)) == b"abc"  # members that follow each other are one file
    path.write_bytes(gzip.compress(idx_header(3) + b"ab") + gzip_of(b"c", 64))
    refused(lambda: read_idx(path, axes=1), "more bytes follow its header")


@pytest.mark.parametrize("shape", [[2**32 - 1] * 3, [60_000, 28, 28], [2**31, 2**31, 0xFFFFFFFF]])
def test_headers_that_claim_more_than_follows_are_refused_before_anything_is_made(tmp_path, shape):
    size = int(np.prod(shape, dtype=object))
    (tmp_path / "x").write_bytes(idx_header(*shape) + b"some")
    refused(lambda: read_idx(tmp_path / "x", axes=3), f"= {size} values, but 4 bytes follow its header")
    (tmp_path / "x.gz").write_bytes(gzip.compress(idx_header(*shape) + b"some"))
    refused(lambda: read_idx(tmp_path / "x.gz", axes=3), f"= {size} values, .*compressed bytes can't hold so much")


def test_a_plain_file_that_is_too_long_is_refused_without_reading_it(tmp_path):
    with (tmp_path / "x").open("wb") as file:
        file.write(idx_header(10))
        file.truncate(2**40)
    refused(lambda: read_idx(tmp_path / "x", axes=1), rf"but {2**40 - 8} bytes follow its header")


def test_data_larger_than_memory_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "machine_memory", lambda: 1000)
    (tmp_path / "x").write_bytes(idx_header(1001) + bytes(1001))
    refused(lambda: read_idx(tmp_path / "x", axes=1), "1,001 bytes, more than the 1,000 of this machine's memory")
    np.savez(tmp_path / "x.npz", x=np.zeros(2000, np.uint8))
    refused(lambda: npz(str(tmp_path / "x.npz")), r"the arrays `x.npy`, [\d,]+ bytes, more than the 1,000 of this")
    (tmp_path / "x").write_bytes(idx_header(1000) + bytes(1000))
    assert len(read_idx(tmp_path / "x", axes=1)) == 1000


def npy(shape, kind="<f8", body=b""):
    """Returns an array file with this shape in its header, whatever follows."""
    text = repr({"descr": kind, "fortran_order": False, "shape": shape}).encode() + b"\n"
    return b"\x93NUMPY\1\0" + struct.pack("<H", len(text)) + text + body


def zip_of(path, content):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("x.npy", content)
    return path


@pytest.mark.parametrize("shape", [(2**40,), (2**62, 2**62), (2,)])
def test_arrays_that_claim_more_than_their_file_holds_are_refused(tmp_path, shape):
    path = zip_of(tmp_path / "x.npz", npy(shape, body=bytes(8)))
    refused(lambda: npz(str(path)), rf"`x.npy` of {path} says .* float64 of shape \[{shape[0]}.*but 8 follow its head")


def test_a_header_of_a_version_that_numbers_do_not_need_is_refused_unread(tmp_path):
    content = npy((2**40,), body=bytes(8))
    path = zip_of(tmp_path / "x.npz", content[:6] + b"\3\0" + content[8:10] + b"\0\0" + content[10:])
    refused(lambda: npz(str(path)), "The array `x` of .* can't be read: Its header is of a version")


def patched(path, offset_there, offset_here, value):
    """Writes `value` into both headers of a zip's one member: the directory's, and the local one."""
    content = bytearray(path.read_bytes())
    there = content.index(b"PK\1\2")
    content[there + offset_there : there + offset_there + len(value)] = value
    content[offset_here : offset_here + len(value)] = value
    path.write_bytes(content)


def test_a_zip_that_claims_more_than_deflate_can_hold_is_refused(tmp_path):
    path = zip_of(tmp_path / "x.npz", npy((2**28,)))
    patched(path, 24, 22, struct.pack("<I", 2**31 + 80))
    refused(lambda: npz(str(path)), r"the arrays `x.npy`, 2,147,483,\d+ bytes, but \d+ compressed bytes can't hold")


@pytest.mark.parametrize(("there", "here", "value"), [(8, 6, b"\1"), (10, 8, b"\x63")])
def test_a_zip_with_a_password_or_of_unknown_compression_is_refused(tmp_path, there, here, value):
    path = zip_of(tmp_path / "x.npz", npy((1,), body=bytes(8)))
    patched(path, there, here, value)
    refused(lambda: npz(str(path)), "can't be read: .*(encrypted|not supported)")


def test_the_header_of_an_array_is_never_more_than_refused(tmp_path):
    for text in (b"(" * 5000, b"-" * 5000 + b"1", b"{'descr':", b"\xff\xfe", b"{}", b""):
        path = zip_of(tmp_path / "x.npz", b"\x93NUMPY\1\0" + struct.pack("<H", len(text)) + text)
        refused(lambda path=path: npz(str(path)), "The array `x` of .* can't be read")


def chunk(name, content):
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))


def test_lists_of_pieces_that_hardly_end_are_not_walked_to_their_end(tmp_path, monkeypatch):
    assert image_headers._PIECES == 100_000
    monkeypatch.setattr(image_headers, "_PIECES", 1000)
    path = tmp_path / "x"
    for content in (
        PNG[:33] + chunk(b"abCd", b"") * 1001 + PNG[33:] + b"x",  # what follows the end has its walk begin
        JPEG[:2] + b"\xff\xfe\0\2" * 1001 + JPEG[2:],
        JPEG[:2] + b"\xff" * 1001 + JPEG[2:],
    ):
        path.write_bytes(content)
        refused(lambda: image_size(path), "x consists of more than 1,000 pieces")


@pytest.mark.parametrize("content", [PNG, JPEG, PNG[:-1], JPEG[:-2]])
def test_a_file_far_larger_than_its_image_is_refused_unread(tmp_path, content):
    with (tmp_path / "x.png").open("wb") as file:
        file.write(content)
        file.truncate(2**36)
    refused(lambda: image_size(tmp_path / "x.png"), r"has 68,719,476,736 bytes, but its \d+ x \d+ pixels need at most")


def test_compressed_notes_of_a_png_stay_small(tmp_path):
    """TensorFlow's decoder stops inflating them at eight megabytes."""
    bomb = zlib.compress(bytes(64 * MEBIBYTE))
    for note in (b"zTXt", b"k\0\0"), (b"iTXt", b"k\0\1\0\0\0"), (b"iCCP", b"k\0\0"):
        (tmp_path / "x.png").write_bytes(PNG[:33] + chunk(note[0], note[1] + bomb) + PNG[33:])
        np.testing.assert_allclose(everything(image_folder(str(tmp_path), size=8))["image"][0], NOISE / 255, atol=1e-5)


@pytest.mark.parametrize("name", [b"a[b]*?", b"back\\slash", b"new\nline", b"tab\t]'\"", b"\xff\xe4"])
def test_folder_and_file_of_any_name_are_read(tmp_path, name):
    folder = tmp_path / os.fsdecode(name)
    png(folder / (os.fsdecode(name) + ".png"), NOISE)
    np.testing.assert_allclose(everything(image_folder(str(folder), size=8))["image"][0], NOISE / 255, atol=1e-5)
    for file, shape in (("t10k-images-idx3-ubyte", (1, 28, 28)), ("t10k-labels-idx1-ubyte", (1,))):
        (folder / file).write_bytes(idx_header(*shape) + bytes(int(np.prod(shape))))
    assert len(mnist(str(folder), "test")) == 1
