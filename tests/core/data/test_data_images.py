"""Folders of images: what is read, in which order, and what is refused by the name of its file."""

import struct
import zlib

import gin
import numpy as np
import pytest
import tensorflow as tf

from core.data import (
    eval_chunks,
    image_folder,
    paired_folders,
    train_chunks,
    unpaired_folders,
    unreadable_image,
)
from core.data.image_headers import MAX_PIXELS, image_size
from core.data.unpaired import unpaired
from core.errors import ConfigurationError, DataError

RANDOM = np.random.RandomState(0)
NOISE = RANDOM.randint(0, 256, [8, 8, 3]).astype(np.uint8)
SMOOTH = tf.image.resize(RANDOM.rand(1, 4, 4, 3), [64, 64]).numpy()[0]  # which JPEG hardly changes


def png(path, pixels):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(tf.io.encode_png(pixels).numpy())
    return path


def jpeg(path, pixels, **kwargs):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(tf.io.encode_jpeg(pixels, quality=98, chroma_downsampling=False, **kwargs).numpy())
    return path


def level(value, size=4):
    """An image of one grey, by which it is known again."""
    return np.full([size, size, 3], value, np.uint8)


def domains(root, num_a, num_b, split="train"):
    """Images of A with levels from 0 on, of B with levels from 100 on."""
    for domain, count, first in (("A", num_a, 0), ("B", num_b, 100)):
        for i in range(count):
            png(root / f"{split}{domain}" / f"{i:03d}.png", level(first + i))
    return str(root)


def everything(source):
    return {k: v.numpy() for k, v in source.gather(tf.range(len(source), dtype=tf.int64)).items()}


def levels(images):
    """The grey of each image, back from [-1, 1]."""
    return np.round((images[..., 0, 0, 0] + 1.0) * 127.5).astype(int)


def raw_png(width, height, depth, kind, rows, *extra):
    """A PNG as its specification writes it, for what TensorFlow can't write."""
    chunks = [(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, kind, 0, 0, 0)), *extra]
    chunks += [(b"IDAT", zlib.compress(b"".join(b"\0" + row for row in rows))), (b"IEND", b"")]
    parts = [struct.pack(">I", len(d)) + n + d + struct.pack(">I", zlib.crc32(n + d)) for n, d in chunks]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def test_pixels_come_out_from_zero_to_one_at_their_places(tmp_path):
    png(tmp_path / "x.png", NOISE)
    source = image_folder(str(tmp_path), size=8)
    assert source.spec == {"image": tf.TensorSpec([8, 8, 3], tf.float32)}
    np.testing.assert_allclose(everything(source)["image"][0], NOISE / 255.0, atol=1e-5)


def test_jpeg_and_png_of_any_case_are_read_by_name_and_other_files_left_alone(tmp_path):
    smooth = np.uint8(SMOOTH * 255)
    jpeg(tmp_path / "b.JPG", smooth)
    jpeg(tmp_path / "c.jpeg", smooth, progressive=True)
    png(tmp_path / "a.PNG", smooth)
    png(tmp_path / "d.jpg", smooth)  # what a file holds counts, not what its name says
    (tmp_path / "notes.txt").write_text("hello")
    (tmp_path / "._a.png").write_bytes(b"what a file manager leaves behind")
    (tmp_path / "folder.png").mkdir()
    source = image_folder(str(tmp_path), size=64)
    assert [path.name for path in source.files["image"]] == ["a.PNG", "b.JPG", "c.jpeg", "d.jpg"]
    for image in everything(source)["image"]:
        np.testing.assert_allclose(image, SMOOTH, atol=0.1)


def test_grey_transparent_16_bit_and_palette_images_become_three_channels(tmp_path):
    grey, alpha, deep = NOISE[..., :1], RANDOM.randint(0, 256, [8, 8, 1]), RANDOM.randint(0, 65536, [8, 8, 3])
    png(tmp_path / "a_grey.png", grey)
    png(tmp_path / "b_grey_alpha.png", np.concatenate([grey, alpha], -1).astype(np.uint8))
    png(tmp_path / "c_alpha.png", np.concatenate([NOISE, alpha], -1).astype(np.uint8))
    png(tmp_path / "d_deep.png", deep.astype(np.uint16))
    png(tmp_path / "e_deep_grey.png", deep[..., :1].astype(np.uint16))
    bits = raw_png(8, 8, 1, 0, [bytes([row]) for row in NOISE[:, 0, 0]])
    (tmp_path / "f_one_bit.png").write_bytes(bits)
    colours = (b"PLTE", NOISE[0].tobytes())
    indices = NOISE[..., 0] % 8
    (tmp_path / "g_palette.png").write_bytes(raw_png(8, 8, 8, 3, [row.tobytes() for row in indices], colours))
    expected = [
        grey.repeat(3, -1),
        grey.repeat(3, -1),
        NOISE,
        deep >> 8,
        (deep[..., :1] >> 8).repeat(3, -1),
        255 * np.unpackbits(NOISE[:, 0, 0])[:64].reshape(8, 8, 1).repeat(3, -1).astype(int),
        NOISE[0][indices],
    ]
    found = everything(image_folder(str(tmp_path), size=8))["image"]
    np.testing.assert_allclose(found, np.stack(expected) / 255.0, atol=1e-5)


def test_a_grey_jpeg_becomes_three_equal_channels(tmp_path):
    jpeg(tmp_path / "x.jpg", np.uint8(SMOOTH[..., :1] * 255), format="grayscale")
    (image,) = everything(image_folder(str(tmp_path), size=64))["image"]
    np.testing.assert_array_equal(image, image[..., :1].repeat(3, -1))
    np.testing.assert_allclose(image, SMOOTH[..., :1].repeat(3, -1), atol=0.1)


def test_tiny_huge_and_narrow_images_come_out_at_the_same_size(tmp_path):
    png(tmp_path / "a_tiny.png", level(50, size=1))
    png(tmp_path / "b_narrow.png", np.full([1, 3000, 3], 100, np.uint8))
    checks = np.indices([2000, 3000]).sum(0)[..., None] % 2 * 200
    png(tmp_path / "c_huge.png", checks.astype(np.uint8).repeat(3, -1))
    images = everything(image_folder(str(tmp_path), size=32))["image"]
    assert images.shape == (3, 32, 32, 3)
    # Shrinking takes means, also of the finest pattern: a point for a point would keep its black and white.
    for image, value in zip(images, [50, 100, 100], strict=True):
        np.testing.assert_allclose(image, value / 255.0, atol=0.01)


def test_what_overshoots_at_an_edge_is_clipped(tmp_path):
    png(tmp_path / "x.png", np.uint8([[[0] * 3, [255] * 3]] * 2))
    (image,) = everything(image_folder(str(tmp_path), size=16))["image"]
    assert (image.min(), image.max()) == (0.0, 1.0)


@pytest.mark.parametrize(("num_a", "num_b"), [(7, 3), (3, 7), (5, 5), (1, 6), (4, 1)])
def test_an_epoch_shows_each_image_of_the_larger_domain_once_and_the_others_equally_often(tmp_path, num_a, num_b):
    source = unpaired_folders(domains(tmp_path, num_a, num_b), size=4)
    size = max(num_a, num_b)
    assert len(source) == size
    stream = train_chunks(source, global_batch_size=1, microbatches=1, chunk_steps=size, seed=1)
    for chunk in stream.take(2):  # a chunk is an epoch
        for feature, count, first in (("a", num_a, 0), ("b", num_b, 100)):
            seen = np.bincount(levels(chunk[feature].numpy()).ravel() - first, minlength=count)
            assert len(seen) == count
            assert set(seen) <= {size // count, -(-size // count)}


def test_partners_are_mixed_and_the_same_each_time():
    for counts in [(50, 50), (20, 50), (50, 20)]:
        in_a, in_b = unpaired(*counts)
        np.testing.assert_array_equal(np.stack([in_a, in_b]), unpaired(*counts))
        assert (in_a == in_b).sum() < 10  # images of one name don't meet


def test_training_gets_room_to_cut_from_and_testing_the_size_itself(tmp_path):
    for split in ("train", "test"):
        domains(tmp_path, 2, 3, split)
    make = {"directory": str(tmp_path), "size": 8, "load_size": 10}
    for folders in (unpaired_folders, paired_folders):
        if folders is paired_folders:
            (tmp_path / "trainB" / "002.png").unlink()
            (tmp_path / "testB" / "002.png").unlink()
        assert folders(**make).spec["b"].shape == [10, 10, 3]
        assert folders(**make, split="test").spec["a"].shape == [8, 8, 3]
        assert folders(str(tmp_path), size=8).spec["a"].shape == [8, 8, 3]


def test_pairs_go_by_name_whatever_their_suffix(tmp_path):
    for i, name in enumerate(["one", "two", "three"]):
        png(tmp_path / "trainA" / f"{name}.png", level(i))
        (png if i else jpeg)(tmp_path / "trainB" / f"{name}.{'png' if i else 'jpg'}", level(100 + i))
    found = everything(paired_folders(str(tmp_path), size=4))
    np.testing.assert_array_equal(levels(found["b"]) - levels(found["a"]), [100] * 3)
    assert levels(found["a"]).tolist() == [0, 2, 1]  # one, three, two


def test_a_name_without_partner_is_named(tmp_path):
    directory = domains(tmp_path, 3, 2)
    with pytest.raises(DataError, match=r"trainB holds no partner of `002.png`: .*`unpaired_folders`"):
        paired_folders(directory, size=4)
    domains(tmp_path, 3, 11)
    with pytest.raises(DataError, match=r"trainA holds no partner of `003.png`, .*`007.png` and 3 more"):
        paired_folders(directory, size=4)
    png(tmp_path / "trainA" / "001.jpg", level(0))
    with pytest.raises(DataError, match=r"001.png and `001.jpg` beside it have one name"):
        paired_folders(directory, size=4)


def test_evaluation_counts_each_example_once(tmp_path):
    source = unpaired_folders(domains(tmp_path, 5, 3, "test"), size=4, split="test")
    seen = [(levels(x["a"].numpy())[mask.numpy() > 0]) for x, mask in eval_chunks(source, global_batch_size=2)]
    assert sorted(np.concatenate(seen)) == [0, 1, 2, 3, 4]


def test_a_gin_file_names_folders_and_splits(tmp_path):
    for split in ("train", "test"):
        domains(tmp_path, 2, 2, split)
    try:
        gin.parse_config(f"unpaired_folders.directory = {str(tmp_path)!r}\nunpaired_folders.size = 8")
        gin.parse_config("unpaired_folders.load_size = 9\ntest/unpaired_folders.split = 'test'")
        assert unpaired_folders().spec["a"].shape == [9, 9, 3]
        with gin.config_scope("test"):
            assert unpaired_folders().spec["a"].shape == [8, 8, 3]
    finally:
        gin.clear_config()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"size": 0}, "`size` of `unpaired_folders` is 0; it is a number of pixels"),
        ({"size": 8, "load_size": 7}, "`load_size` of `unpaired_folders` is 7, less than `size`, 8"),
        ({"size": 8, "split": "tests"}, r"`split` of `unpaired_folders` is 'tests'.*Did you mean `test`"),
    ],
)
def test_sizes_and_splits_that_cannot_be_are_refused(tmp_path, arguments, message):
    with pytest.raises(ConfigurationError, match=message):
        unpaired_folders(domains(tmp_path, 1, 1), **arguments)


def test_missing_folders_are_named_with_what_is_there_instead(tmp_path):
    domains(tmp_path / "data", 2, 2)
    cases = [
        (unpaired_folders, "data", {"split": "test"}, r"no folder .*data/testA \(folders in .*: `trainA`, `trainB`\)"),
        (unpaired_folders, "none", {}, r"no folder .*none/trainA \(folders in .*none: none\); .* as folders `trainA`"),
        (image_folder, "none", {}, r"no folder .*none \(folders in .*: `data`\); give a folder of images"),
        (image_folder, "data/trainA/000.png", {}, "no folder .*000.png"),
        (image_folder, "data", {}, r"data holds no JPEG or PNG file, but 2 folders, which aren't searched"),
    ]
    for make, name, kwargs, message in cases:
        with pytest.raises(DataError, match=message) as error:
            make(str(tmp_path / name), size=4, **kwargs)
        assert error.value.exit_code == 4


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
    """The JPEG with bytes changed at this place after the mark of its frame."""
    place = content.index(b"\xff\xc0") + offset
    return content[:place] + replacement + content[place + len(replacement) :]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty; JPEG and PNG are read"),
        (b"hello, world", "is no image that is known here: it begins with 68 65 6c 6c"),
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
def test_what_is_damaged_inside_is_named_when_it_is_read(tmp_path, bad):
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
    # Inside a pipeline TensorFlow wraps the error; whoever catches it finds the file's name in it.
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
