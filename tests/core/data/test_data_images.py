"""Folders of images: selection, order and labels; errors name the file."""

import struct
import zlib

import gin
import numpy as np
import pytest
import tensorflow as tf
from data_lab import NOISE, RANDOM, SMOOTH, domains, everything, jpeg, level, png

from core.data import (
    balanced,
    eval_chunks,
    image_folder,
    labelled_folders,
    paired_folders,
    train_chunks,
    unpaired_folders,
)
from core.data.images import unpaired
from core.errors import ConfigurationError, DataError


def levels(images):
    """Returns the grey level of each image, mapped back from [-1, 1]."""
    return np.round((images[..., 0, 0, 0] + 1.0) * 127.5).astype(int)


def raw_png(width, height, depth, kind, rows, *extra):
    """Returns a PNG written from its specification, for types that TensorFlow can't write."""
    chunks = [(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, kind, 0, 0, 0)), *extra]
    chunks += [(b"IDAT", zlib.compress(b"".join(b"\0" + row for row in rows))), (b"IEND", b"")]
    parts = [struct.pack(">I", len(d)) + n + d + struct.pack(">I", zlib.crc32(n + d)) for n, d in chunks]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def test_pixels_come_out_from_zero_to_one_at_their_places(tmp_path):
    png(tmp_path / "x.png", NOISE)
    source = image_folder(str(tmp_path), size=8)
    assert source.spec == {"image": tf.TensorSpec([8, 8, 3], tf.float32)}
    np.testing.assert_allclose(everything(source)["image"][0], NOISE / 255.0, atol=1e-5)


def test_images_of_the_right_size_are_left_as_they_are_to_the_bit(tmp_path):
    """An image of another size makes the source resize all of them; those of the right size stay the same."""
    jpeg(tmp_path / "a.jpg", NOISE)
    png(tmp_path / "b.png", NOISE)
    fitting = everything(image_folder(str(tmp_path), size=8))["image"]
    png(tmp_path / "c.png", NOISE[:4])
    np.testing.assert_array_equal(everything(image_folder(str(tmp_path), size=8))["image"][:2], fitting)
    np.testing.assert_array_equal(fitting[1], NOISE.astype(np.float32) / np.float32(255.0))


def test_chunks_that_are_decoded_side_by_side_come_in_their_order(tmp_path):
    for i in range(16):
        png(tmp_path / f"{i:02}.png", level(10 * i))
    source = image_folder(str(tmp_path), size=4)
    layout = {"global_batch_size": 4, "microbatches": 1, "chunk_steps": 2, "seed": 0}
    found = []
    for threads in (1, 2):
        source.threads = threads
        stream = train_chunks(source, **layout).take(6)
        found.append(np.stack([chunk["image"] for chunk in stream]))
    np.testing.assert_array_equal(*found)


def test_a_folder_says_the_range_of_its_images(tmp_path):
    assert unpaired_folders(domains(tmp_path, 1, 1), size=2).value_range("a") == (-1.0, 1.0)
    assert image_folder(str(tmp_path / "trainA"), size=2).value_range("image") == (0.0, 1.0)


def test_jpeg_and_png_of_any_case_are_read_by_name_and_other_files_left_alone(tmp_path):
    smooth = np.uint8(SMOOTH * 255)
    jpeg(tmp_path / "b.JPG", smooth)
    jpeg(tmp_path / "c.jpeg", smooth, progressive=True)
    png(tmp_path / "a.PNG", smooth)
    png(tmp_path / "d.jpg", smooth)  # the content counts, not the file's suffix
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
    # Shrinking averages even the finest pattern: sampling single pixels would keep its black and white.
    for image, value in zip(images, [50, 100, 100], strict=True):
        np.testing.assert_allclose(image, value / 255.0, atol=0.01)


def test_resized_edge_is_clipped(tmp_path):
    png(tmp_path / "x.png", np.uint8([[[0] * 3, [255] * 3]] * 2))
    (image,) = everything(image_folder(str(tmp_path), size=16))["image"]
    assert (image.min(), image.max()) == (0.0, 1.0)


@pytest.mark.long
@pytest.mark.parametrize(("num_a", "num_b"), [(7, 3), (3, 7), (5, 5), (1, 6), (4, 1)])
def test_unpaired_epoch_shows_the_larger_domain_once_and_the_other_equally_often(tmp_path, num_a, num_b):
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
        assert (in_a == in_b).sum() < 10  # images of the same name stay apart


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
    with pytest.raises(DataError, match=r"001.png and `001.jpg` have one name"):
        paired_folders(directory, size=4)


def test_evaluation_counts_each_example_once(tmp_path):
    source = unpaired_folders(domains(tmp_path, 5, 3, "test"), size=4, split="test")
    seen = [(levels(x["a"].numpy())[mask.numpy() > 0]) for x, mask in eval_chunks(source, global_batch_size=2)]
    assert sorted(np.concatenate(seen)) == [0, 1, 2, 3, 4]


def test_a_gin_file_names_folders_and_splits(tmp_path):
    for split in ("train", "test"):
        domains(tmp_path, 2, 2, split)
    gin.parse_config(f"unpaired_folders.directory = {str(tmp_path)!r}\nunpaired_folders.size = 8")
    gin.parse_config("unpaired_folders.load_size = 9\ntest/unpaired_folders.split = 'test'")
    assert unpaired_folders().spec["a"].shape == [9, 9, 3]
    with gin.config_scope("test"):
        assert unpaired_folders().spec["a"].shape == [8, 8, 3]


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


@pytest.fixture
def animals(tmp_path):
    """Writes three cats of level 10, a dog of 50, two cows of 90."""
    for name, count, value in (("cat", 3, 10), ("dog", 1, 50), ("cow", 2, 90)):
        for i in range(count):
            png(tmp_path / "animals" / name / f"{i}.png", level(value))
    (tmp_path / "animals" / ".hidden").mkdir()
    (tmp_path / "animals" / "notes.txt").write_text("by hand")
    return tmp_path / "animals"


def labels_and_levels(source):
    found = everything(source)
    return found["label"].tolist(), np.round(found["image"][:, 0, 0, 0] * 255).astype(int).tolist()


def test_labels_are_the_folders_by_name(animals):
    source = labelled_folders(str(animals), size=4)
    assert source.spec == {"image": tf.TensorSpec([4, 4, 3], tf.float32), "label": tf.TensorSpec([], tf.int32)}
    assert labels_and_levels(source) == ([0, 0, 0, 1, 1, 2], [10, 10, 10, 90, 90, 50])
    assert (source.value_range("image"), source.value_range("label")) == ((0.0, 1.0), None)
    assert (source.extremes("label"), source.extremes("image")) == ((0, 0, 2, 5), None)


def test_given_classes_say_the_labels_and_some_may_be_missing(animals):
    source = labelled_folders(str(animals), size=4, classes=["dog", "horse", "cow", "cat"])
    assert labels_and_levels(source) == ([3, 3, 3, 2, 2, 0], [10, 10, 10, 90, 90, 50])


def test_classes_of_images_are_balanced_without_decoding_them(animals):
    source = balanced(labelled_folders(str(animals), size=4), by="label")
    (chunk,) = train_chunks(source, global_batch_size=6, microbatches=1, chunk_steps=2, seed=0).take(1)
    np.testing.assert_array_equal(np.sort(chunk["label"], axis=-1), [[[0, 0, 1, 1, 2, 2]]] * 2)


def test_folder_without_classes_is_refused(animals):
    read = lambda **more: labelled_folders(**{"directory": str(animals), "size": 4} | more)  # noqa: E731
    with pytest.raises(DataError, match=r"cow is the folder of a class that .* it lists `cat`, `dog`, `cox`"):
        read(classes=["cat", "dog", "cox"])
    with pytest.raises(DataError, match=r"Did you mean `cox`\? Add it there"):
        read(classes=["cat", "dog", "cox"])
    with pytest.raises(ConfigurationError, match=r"`labelled_folders.classes` is .* give each class once"):
        read(classes=["cat", "dog", "cow", "dog"])
    with pytest.raises(ConfigurationError, match=r"`labelled_folders.classes` is 'cat'; give a list: \['cat', 'dog'\]"):
        read(classes="cat")
    for size in (0, 4.5, "4", True):
        with pytest.raises(ConfigurationError, match=f"`size` of `labelled_folders` is {size!r}; it is a number of pi"):
            read(size=size)
    with pytest.raises(DataError, match=r"0.png is next to the classes' folders; move it"):
        read(directory=str(animals / "cat"))
    (animals / "cat" / "more").mkdir()
    with pytest.raises(DataError, match=r"cat/more is a folder within that of a class, which isn't searched"):
        read()
    (animals / "cat" / "more").rmdir()
    (animals / "empty").mkdir()
    with pytest.raises(DataError, match=r"empty holds no JPEG or PNG file, but nothing; give each class images"):
        read()
    with pytest.raises(DataError, match=r"empty holds nothing; it needs a folder of images for each class"):
        read(directory=str(animals / "empty"))
    (animals / "empty" / "a.png").write_bytes(b"GIF89a")
    with pytest.raises(DataError, match=r"a.png is a GIF"):
        read()
