"""What the first and last bytes of an image file say: enough to refuse a bad file before a run begins.

Decoding every file would take too long, and would use TensorFlow before the strategy exists. So a file's kind, its
size in pixels and whether it is cut off are read from the file's own marks, in plain Python. What is damaged between
them shows when it is decoded (`core/data/image_files.py`).
"""

import os
import struct
from pathlib import Path
from typing import BinaryIO

from core.errors import DataError

# As uint8 in three channels this is 300 MB, and several are decoded at once.
MAX_PIXELS = 100_000_000

_PNG = b"\x89PNG\r\n\x1a\n"
_END_OF_PNG = b"\0\0\0\0IEND\xaeB`\x82"
_JPEG = b"\xff\xd8\xff"
_END_OF_JPEG = b"\xff\xd9"
_TAIL = 4096

# Marker bytes of JPEG (ITU-T T.81, table B.1).
_START_OF_SCAN = 0xDA
_FRAMES = set(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}  # start of frame, where the size stands
_READ_FRAMES = {0xC0, 0xC1, 0xC2}  # baseline, extended, progressive
_ALONE = {0x01, *range(0xD0, 0xD8)}  # markers that no length follows


def image_size(path: Path) -> tuple[int, int]:
    """Reads height and width of a JPEG or PNG file; raises a `DataError` that says what is wrong with it."""
    try:
        with path.open("rb") as file:
            head = file.read(32)
            if head.startswith(_PNG):
                height, width = _png_size(path, file)
            elif head.startswith(_JPEG):
                height, width = _jpeg_size(path, file)
            else:
                raise DataError(f"{path} {_instead(head)}; JPEG and PNG are read: convert it, or remove it.")
    except OSError as error:
        raise DataError(f"{path} can't be read: {error.strerror}; check what it is and who may read it.") from error
    if not height or not width:
        raise DataError(f"{path} says that it has {width} x {height} pixels; it is damaged: write it again.")
    if height * width > MAX_PIXELS:
        raise DataError(
            f"{path} has {width} x {height} pixels, more than the {MAX_PIXELS:,} that are decoded at once; scale it "
            "down or cut it into parts."
        )
    return height, width


def _png_size(path: Path, file: BinaryIO) -> tuple[int, int]:
    """Reads the first chunk; the image's end is where the file ends, or where the chunks' lengths lead to."""
    total = os.fstat(file.fileno()).st_size
    if total < len(_PNG) + 25:  # the first chunk is a length, a name, 13 bytes and a check sum
        raise _cut_off(path, total)
    file.seek(len(_PNG))
    length, name, width, height = struct.unpack(">I4sII", file.read(16))
    if name != b"IHDR":
        raise DataError(f"{path} is damaged: no PNG begins with the chunk {name!r}; write it again.")
    file.seek(total - len(_END_OF_PNG))
    if file.read() == _END_OF_PNG:
        return height, width
    place = len(_PNG)
    while place + 12 <= total:
        file.seek(place)
        length, name = struct.unpack(">I4s", file.read(8))
        place += 12 + length
        if name == b"IEND" and place <= total:
            return height, width
    raise _cut_off(path, total)


def _jpeg_size(path: Path, file: BinaryIO) -> tuple[int, int]:
    """Reads the frame's header, which comes before the first scan; the image's end must come after it."""
    total = os.fstat(file.fileno()).st_size
    cut_off = _cut_off(path, total)
    file.seek(2)
    size = None
    while True:
        mark = file.read(2)
        while len(mark) == 2 and mark[0] == 0xFF and mark[1] == 0xFF:  # any number of 0xFF may come before a marker
            mark = mark[1:] + file.read(1)
        if len(mark) < 2:
            raise cut_off
        if mark[0] != 0xFF:
            raise DataError(f"{path} is damaged: {mark.hex(' ')} stands where a JPEG marker should; write it again.")
        if mark[1] in _ALONE:
            continue
        segment = file.read(2)
        if len(segment) < 2:
            raise cut_off
        (length,) = struct.unpack(">H", segment)
        if mark[1] in _FRAMES:
            frame = file.read(5)
            if len(frame) < 5:
                raise cut_off
            bits, height, width = struct.unpack(">BHH", frame)
            if mark[1] not in _READ_FRAMES or bits != 8:
                raise DataError(
                    f"{path} is a JPEG of a rare kind ({bits} bits, frame {mark[1]:#x}: lossless or arithmetic); "
                    "save it as an ordinary JPEG of 8 bits, or as PNG."
                )
            size = height, width
            length -= 5
        if mark[1] == _START_OF_SCAN:
            break
        file.seek(length - 2, os.SEEK_CUR)
    if size is None:
        raise DataError(f"{path} is damaged: its first scan comes before the size of the image; write it again.")
    # Within a scan 0xFF is followed by zero, so what looks like the end is the end. It is mostly the last two bytes.
    scan = file.tell()
    for begin in (max(scan, total - _TAIL), scan):
        file.seek(begin)
        if _END_OF_JPEG in file.read():
            return size
    raise cut_off


def _cut_off(path: Path, total: int) -> DataError:
    return DataError(f"{path} is cut off: its {total} bytes end before its image does; copy or download it again.")


def _instead(head: bytes) -> str:
    """Says what a file is that is neither JPEG nor PNG."""
    if not head:
        return "is empty"
    kinds = {
        "a GIF": head.startswith((b"GIF87a", b"GIF89a")),
        "a WebP": head.startswith(b"RIFF") and head[8:12] == b"WEBP",
        "a BMP": head.startswith(b"BM"),
        "a TIFF": head.startswith((b"II*\0", b"MM\0*")),
        "an AVIF or HEIC": head[4:8] == b"ftyp",
    }
    for kind, fits in kinds.items():
        if fits:
            return f"is {kind}, whatever its name says"
    return f"is no image that is known here: it begins with {head[:4].hex(' ')}"
