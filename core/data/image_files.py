"""Lists and decodes image files.

JPEG and PNG files are read; their content tells the format, not their name. Grey images get three equal channels.
Transparency is dropped. 16-bit values keep their upper eight bits. A photograph's orientation tag (EXIF) is ignored.
"""

import os
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import tensorflow as tf

from core.arguments import listed
from core.errors import DataError

SUFFIXES = (".jpg", ".jpeg", ".png")
# Skipping what the owner considers an image, without a message, would be wrong; a text file may be skipped.
_OTHER_IMAGES = (".gif", ".webp", ".bmp", ".tif", ".tiff", ".heic", ".heif", ".avif", ".jxl", ".jp2", ".ppm", ".svg")
_UNREADABLE = "An image file is damaged or has gone:"
THREADS = os.cpu_count() or 1  # that decode in parallel


def list_images(folder: Path) -> list[Path]:
    """Lists the JPEG and PNG files directly in `folder`, by name. Other kinds of images raise a `DataError`."""
    try:
        entries = sorted(entry for entry in folder.iterdir() if not entry.name.startswith(".") and not entry.is_dir())
    except OSError as error:
        raise DataError(f"{folder} can't be read: {error.strerror}; give a folder of images.") from error
    for entry in entries:
        if entry.suffix.lower() in _OTHER_IMAGES:
            raise DataError(
                f"{entry} is of a kind that isn't read; {listed(SUFFIXES)} are: convert it, or take it out of the "
                "folder."
            )
    return [entry for entry in entries if entry.suffix.lower() in SUFFIXES]


def holdings(folder: Path) -> str:
    """Describes the contents of a folder without images, for an error: "3 of .txt, 1 folder, ..."."""
    entries = list(folder.iterdir())
    suffixes = Counter(entry.suffix.lower() or "no suffix" for entry in entries if not entry.is_dir())
    found = [f"{count} of {suffix}" for suffix, count in sorted(suffixes.items())]
    folders = sum(entry.is_dir() for entry in entries)
    if folders:
        found.append(f"{folders} {'folder' if folders == 1 else 'folders'}, which aren't searched")
    return ", ".join(found) or "nothing"


def read_images(paths: tf.Tensor, size: int, *, fitting: bool = False) -> tf.Tensor:
    """Reads the image files `paths` (strings [n]) as float32 [n, size, size, 3] in [0, 1].

    Images are stretched to a square, as CycleGAN's and pix2pix's authors do. `fitting` says that all images already
    have this size: skipping the resize takes a quarter of the time, with the same results. If an image can't be
    decoded, or has another size after all, an error names its file.
    """
    return _images(paths, paths, tf.io.read_file, size, fitting=fitting)


def decode_images(contents: tf.Tensor, names: tf.Tensor, size: int) -> tf.Tensor:
    """Decodes the bytes of image files (strings [n]) as `read_images` does. Errors call the files `names`."""
    return _images(contents, names, tf.identity, size)


def _images(
    given: tf.Tensor, names: tf.Tensor, content: Callable[[tf.Tensor], tf.Tensor], size: int, *, fitting: bool = False
) -> tf.Tensor:
    count = tf.size(given, tf.int64)

    @tf.autograph.experimental.do_not_convert
    def one(number: tf.Tensor, each: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        pixels = tf.io.decode_image(content(each), channels=3, expand_animations=False)
        if fitting:  # stays bytes, so a quarter of the data is copied into the batch
            return number, tf.ensure_shape(pixels, [size, size, 3])
        pixels = tf.ensure_shape(pixels, [None, None, 3])
        # Smoothed when it shrinks; otherwise a large photograph loses whole lines. Cubics overshoot, hence the
        # clipping.
        image = tf.cond(
            tf.reduce_all(tf.shape(pixels)[:2] == size),
            lambda: tf.cast(pixels, tf.float32),  # the same bits, sooner
            lambda: tf.image.resize(pixels, [size, size], method="bicubic", antialias=True),
        )
        return number, tf.clip_by_value(image / 255.0, 0.0, 1.0)

    # Undecodable images are dropped, and detected by their missing index; a last element prevents an empty dataset.
    files = tf.data.Dataset.from_tensor_slices(given).enumerate()
    read = files.map(one, num_parallel_calls=THREADS, deterministic=True).ignore_errors()
    end = tf.data.Dataset.from_tensors((count, tf.zeros([size, size, 3], tf.uint8 if fitting else tf.float32)))
    numbers, images = read.concatenate(end).batch(count + 1).get_single_element()
    places = tf.range(tf.size(numbers, tf.int64))
    first_missing = tf.reduce_min(tf.where(numbers == places, count, places))
    name = tf.gather(tf.concat([names, [""]], axis=0), first_missing)
    if tf.executing_eagerly():
        if first_missing < count:
            raise _unreadable(name.numpy())
    else:
        with tf.control_dependencies([tf.debugging.Assert(first_missing == count, [_UNREADABLE, name])]):
            images = tf.identity(images)
    images = tf.ensure_shape(images[:-1], [None, size, size, 3])
    return tf.cast(images, tf.float32) / 255.0 if fitting else images


def unreadable_image(message: str) -> DataError | None:
    """Returns a `DataError` if TensorFlow's error text `message` quotes an error of `read_images`; else `None`."""
    found = re.search(re.escape(f"[{_UNREADABLE}] [") + r"(.*?)\]$", message, re.MULTILINE)
    if found is None:
        return None
    # TensorFlow writes bytes beyond ASCII as \303 and the like.
    return _unreadable(found.group(1).encode().decode("unicode_escape").encode("latin-1"))


def _unreadable(path: bytes) -> DataError:
    return DataError(
        f"{path.decode(errors='replace')} can't be read or decoded as an image: it is damaged, or was removed or "
        "changed since the run began. Write or download it again, or leave it out."
    )
