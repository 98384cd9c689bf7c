"""Checks the first and last bytes of image files, to find bad files before a run starts.

Decoding every file would take too long, and would start TensorFlow before the strategy exists. So plain Python reads
the format, the size in pixels, and whether the file is cut off. Other damage raises an error once
`core/data/image_files.py` decodes the file.
"""

import os
import struct
from pathlib import Path
from typing import BinaryIO

from core.data.files import reading
from core.errors import DataError

# As uint8 in three channels this is 300 MB, and several images are decoded at once.
MAX_PIXELS = 100_000_000
# Limits beyond any real image: a decoder holds the whole file in memory, and iterates over each of its pieces.
_BYTES_PER_PIXEL = 9  # four channels of 16 bits, which don't compress, in rows of one pixel
_OTHER_BYTES = 64 * 2**20  # notes, profiles, thumbnails
_PIECES = 100_000  # chunks of a PNG; segments of a JPEG, and bytes that fill the space between them

_PNG = b"\x89PNG\r\n\x1a\n"
_END_OF_PNG = b"\0\0\0\0IEND\xaeB`\x82"
_JPEG = b"\xff\xd8\xff"
_END_OF_JPEG = b"\xff\xd9"
_TAIL = 4096
_BLOCK = 2**20

# Marker bytes of JPEG (ITU-T T.81, table B.1).
_START_OF_SCAN = 0xDA
_FRAMES = set(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}  # start of frame, which contains the size
_READ_FRAMES = {0xC0, 0xC1, 0xC2}  # baseline, extended, progressive
_ALONE = {0x01, *range(0xD0, 0xD8)}  # markers without a length


def image_size(path: Path) -> tuple[int, int]:
    """Returns `(height, width)` of a JPEG or PNG file; raises a `DataError` for damaged and other files."""
    with reading(path) as file:
        head = file.read(32)
        if head.startswith(_PNG):
            return _png_size(path, file)
        if head.startswith(_JPEG):
            return _jpeg_size(path, file)
        raise DataError(f"{path} {_instead(head)}; JPEG and PNG are read: convert it, or remove it.")


def _check_size(path: Path, total: int, height: int, width: int) -> None:
    """Raises a `DataError` if an image has no or too many pixels, or `total` bytes are too many for them."""
    if not height or not width:
        raise DataError(f"{path} says that it has {width} x {height} pixels; it is damaged: write it again.")
    if height * width > MAX_PIXELS:
        raise DataError(
            f"{path} has {width} x {height} pixels, more than the {MAX_PIXELS:,} that are decoded at once; scale it "
            "down or cut it into parts."
        )
    most = _BYTES_PER_PIXEL * height * width + _OTHER_BYTES
    if total > most:
        raise DataError(
            f"{path} has {total:,} bytes, but its {width} x {height} pixels need at most {most:,}: write the image "
            "again, without what else is in the file."
        )


def _png_size(path: Path, file: BinaryIO) -> tuple[int, int]:
    """Returns `(height, width)` from a PNG's first chunk. A file without an end chunk raises a `DataError`."""
    total = os.fstat(file.fileno()).st_size
    if total < len(_PNG) + 25:  # the first chunk is a length, a name, 13 bytes and a checksum
        raise _cut_off(path, total)
    file.seek(len(_PNG))
    length, name, width, height = struct.unpack(">I4sII", file.read(16))
    if name != b"IHDR":
        raise DataError(f"{path} is damaged: no PNG begins with the chunk {name!r}; write it again.")
    _check_size(path, total, height, width)
    file.seek(total - len(_END_OF_PNG))
    if file.read() == _END_OF_PNG:
        return height, width
    place = len(_PNG)
    for _ in range(_PIECES):
        if place + 12 > total:
            raise _cut_off(path, total)
        file.seek(place)
        length, name = struct.unpack(">I4s", file.read(8))
        place += 12 + length
        if name == b"IEND" and place <= total:
            return height, width
    raise _too_many_pieces(path)


def _jpeg_size(path: Path, file: BinaryIO) -> tuple[int, int]:
    """Returns `(height, width)` from a JPEG's frame header. A file without an end marker raises a `DataError`."""
    total = os.fstat(file.fileno()).st_size
    cut_off = _cut_off(path, total)
    file.seek(2)
    size = None
    for _ in range(_PIECES):
        mark = file.read(2)
        if mark == b"\xff\xff":  # any number of 0xFF may come before a marker
            file.seek(-1, os.SEEK_CUR)
            continue
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
    else:
        raise _too_many_pieces(path)
    if size is None:
        raise DataError(f"{path} is damaged: its first scan comes before the size of the image; write it again.")
    # Within a scan 0xFF is followed by zero, so an end marker is really the end, mostly in the last two bytes.
    _check_size(path, total, *size)
    scan = file.tell()
    if _holds(file, _END_OF_JPEG, max(scan, total - _TAIL)) or _holds(file, _END_OF_JPEG, scan):
        return size
    raise cut_off


def _holds(file: BinaryIO, mark: bytes, begin: int) -> bool:
    """Says whether `file` has the two bytes `mark` at position `begin` or later."""
    file.seek(begin)
    before = b""
    while block := file.read(_BLOCK):
        if mark in before + block:
            return True
        before = block[-1:]
    return False


def _too_many_pieces(path: Path) -> DataError:
    return DataError(
        f"{path} consists of more than {_PIECES:,} pieces, as no image does that a camera or a program wrote; write it "
        "again, or remove it."
    )


def _cut_off(path: Path, total: int) -> DataError:
    return DataError(f"{path} is cut off: its {total} bytes end before its image does; copy or download it again.")


def _instead(head: bytes) -> str:
    """Returns the kind of file that begins with the bytes `head`, for an error: "is a GIF, whatever its name says"."""
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
    return f"isn't a known kind of image: it begins with {head[:4].hex(' ')}"
