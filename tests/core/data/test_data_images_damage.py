"""Images that can't be read: errors name the file, before the run if possible."""

import struct

import numpy as np
import pytest
import tensorflow as tf
from data_lab import NOISE, RANDOM, domains, everything, png

from core.data import eval_chunks, image_folder, paired_folders, unpaired_folders, unreadable_image
from core.data.image_headers import MAX_PIXELS, image_size
from core.errors import DataError


@pytest.mark.parametrize("make", [unpaired_folders, paired_folders])
@pytest.mark.parametrize("empty", ["A", "B"])
def test_a_domain_without_images_is_named_with_what_it_holds(tmp_path, make, empty):
    directory = domains(tmp_path, 3, 3)
    for path in (tmp_path / f"train{empty}").iterdir():
        path.rename(path.with_suffix(".txt"))
    other = "B" if empty == "A" else "A"
    message = rf"train{empty} holds no JPEG or PNG file, but 3 of \.txt \(train{other} holds 3 images\)"
    with pytest.raises(DataError, match=message):
        make(directory, size=4)
    for path in (tmp_path / f"train{empty}").iterdir():
        path.unlink()
    with pytest.raises(DataError, match=f"train{empty} holds no JPEG or PNG file, but nothing"):
        make(directory, size=4)


@pytest.mark.parametrize("name", ["x.gif", "x.webp", "x.BMP", "x.tiff"])
def test_images_of_kinds_that_are_not_read_are_refused_and_not_left_out(tmp_path, name):
    directory = domains(tmp_path, 1, 1)
    (tmp_path / "trainB" / name).write_bytes(b"anything")
    with pytest.raises(DataError, match=rf"trainB/{name} is of a kind that isn't read; `.jpg`, `.jpeg`, `.png` are"):
        unpaired_folders(directory, size=4)


WHOLE_PNG = tf.io.encode_png(RANDOM.randint(0, 256, [40, 50, 3]).astype(np.uint8)).numpy()
WHOLE_JPEG = tf.io.encode_jpeg(RANDOM.randint(0, 256, [40, 50, 3]).astype(np.uint8)).numpy()
PNG_HEAD = b"\x89PNG\r\n\x1a\n"
LARGE = struct.pack(">II", 20_000, 20_000)


def at_frame(offset, replacement, content=WHOLE_JPEG):
    """Returns the JPEG with bytes changed at this place after its frame marker."""
    place = content.index(b"\xff\xc0") + offset
    return content[:place] + replacement + content[place + len(replacement) :]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty; JPEG and PNG are read"),
        (b"hello, world", "isn't a known kind of image: it begins with 68 65 6c 6c"),
        (b"GIF89a" + bytes(30), "is a GIF, whatever its name says"),
        (b"RIFF\0\0\0\0WEBPVP8 ", "is a WebP"),
        (b"BM" + bytes(30), "is a BMP"),
        (b"MM\0*" + bytes(30), "is a TIFF"),
        (b"\0\0\0\x18ftypavif" + bytes(30), "is an AVIF or HEIC"),
        (WHOLE_PNG[:10], "is cut off: its 10 bytes end"),
        (WHOLE_PNG[:30], "is cut off"),
        (WHOLE_PNG[: len(WHOLE_PNG) // 2], "is cut off"),
        (WHOLE_PNG[:-1], "is cut off"),
        (WHOLE_JPEG[:3], "is cut off"),
        (WHOLE_JPEG[:100], "is cut off"),
        (WHOLE_JPEG[: len(WHOLE_JPEG) // 2], "is cut off"),
        (WHOLE_JPEG[:-2], "is cut off"),
        (PNG_HEAD + b"\0\0\0\x0dJUNK" + bytes(40), "is damaged: no PNG begins with the chunk b'JUNK'"),
        (WHOLE_JPEG[:20] + b"\1\2" + WHOLE_JPEG[20:], "is damaged: 01 02 stands where a JPEG marker should"),
        (b"\xff\xd8\xff\xda\0\x0c" + bytes(10) + b"\xff\xd9", "is damaged: its first scan comes before the size"),
        (at_frame(1, b"\xc3"), r"is a JPEG of a rare kind \(8 bits, frame 0xc3"),
        (at_frame(4, b"\x0c"), r"is a JPEG of a rare kind \(12 bits"),
        (at_frame(5, b"\0\0"), "says that it has 50 x 0 pixels"),
        (WHOLE_PNG[:16] + LARGE + WHOLE_PNG[24:], "has 20000 x 20000 pixels, more than the 100,000,000"),
    ],
)
def test_files_that_cannot_be_images_are_named_before_the_run_begins(tmp_path, content, message):
    png(tmp_path / "a.png", NOISE)
    (tmp_path / "b.png").write_bytes(content)
    with pytest.raises(DataError, match=f"b.png {message}"):
        image_folder(str(tmp_path), size=8)


def test_files_that_cannot_be_opened_are_named(tmp_path):
    (tmp_path / "x.png").symlink_to(tmp_path / "gone.png")
    with pytest.raises(DataError, match=r"x\.png can't be read: No such file"):
        image_folder(str(tmp_path), size=8)


def test_whole_files_are_measured_whatever_follows_their_end(tmp_path):
    path = tmp_path / "x"
    with_thumbnail = WHOLE_JPEG[:2] + b"\xff\xe1\0\x06\xff\xd9\xff\xff" + WHOLE_JPEG[2:]
    for content in (WHOLE_PNG, WHOLE_JPEG, with_thumbnail, b"\xff\xd8\xff" + WHOLE_JPEG[2:]):
        for after in (b"", bytes(10_000)):
            path.write_bytes(content + after)
            assert image_size(path) == (40, 50)
    path.write_bytes(with_thumbnail[:-2])  # the end of the thumbnail isn't that of the image
    with pytest.raises(DataError, match="is cut off"):
        image_size(path)
    assert MAX_PIXELS == 100_000_000


@pytest.mark.parametrize("bad", [[0], [2], [4], [1, 3], range(5)])
def test_image_damaged_inside_is_named_when_it_is_read(tmp_path, bad):
    names = [f"[zebra] {i} à l'eau.png" for i in range(5)]
    for i, name in enumerate(names):
        png(tmp_path / name, NOISE)
        if i in bad:
            content = (tmp_path / name).read_bytes()
            (tmp_path / name).write_bytes(content[:60] + b"oops" + content[64:])
    source = image_folder(str(tmp_path), size=8)
    expected = str(tmp_path / names[bad[0]])
    with pytest.raises(DataError, match="is damaged, or was removed") as raised:
        everything(source)
    assert str(raised.value).startswith(expected + " can't")
    # Inside a pipeline TensorFlow wraps the error; its text still has the file's name.
    with pytest.raises(tf.errors.InvalidArgumentError) as wrapped:
        next(iter(eval_chunks(source, global_batch_size=5)))
    found = unreadable_image(wrapped.value.message)
    assert found is not None
    assert str(found).startswith(expected + " can't")


def test_a_file_that_goes_away_during_a_run_is_named(tmp_path):
    directory = domains(tmp_path, 2, 2)
    source = unpaired_folders(directory, size=4)
    (tmp_path / "trainB" / "001.png").unlink()
    with pytest.raises(DataError, match=r"trainB/001\.png can't be read or decoded"):
        everything(source)


def test_other_errors_are_not_taken_for_damaged_images(tmp_path):
    assert unreadable_image("Incompatible shapes: [2] vs. [3]") is None
    source = unpaired_folders(domains(tmp_path, 2, 2), size=4)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"not in \[0, 2\)"):
        source.gather(tf.constant([5], tf.int64))


def test_making_a_source_of_files_leaves_tensorflow_alone(tmp_path, monkeypatch):
    domains(tmp_path, 2, 2)
    for module in ("images", "image_files"):
        monkeypatch.setattr(f"core.data.{module}.tf", None)
    sources = [make(str(tmp_path), size=4) for make in (unpaired_folders, paired_folders)]
    sources.append(image_folder(str(tmp_path / "trainA"), size=4))
    monkeypatch.undo()
    assert [len(everything(source)) for source in sources] == [2, 2, 1]


def test_an_image_whose_size_has_changed_since_is_named(tmp_path):
    for name in ("a.png", "b.png"):
        png(tmp_path / name, NOISE)
    source = image_folder(str(tmp_path), size=8)
    png(tmp_path / "b.png", NOISE[:4])
    with pytest.raises(DataError, match=r"b\.png can't be read .* changed since the run began"):
        everything(source)
