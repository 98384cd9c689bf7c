"""Reads configuration files as text. Raises an error for binary files and the like."""

from pathlib import Path

MOST_BYTES = 16 * 2**20  # more than anyone writes by hand
MOST_DEEP = 50  # nested includes, or nested brackets
_SHOWN = 200  # characters of a line in a message


def read_text(path: Path) -> str:
    """Returns the text of a file. Raises an `OSError`, or a `ValueError` with the reason why it isn't text."""
    size = path.stat().st_size
    if not path.is_file():  # reading a pipe blocks, and a device may be endless
        raise ValueError("it is a directory" if path.is_dir() else "it is a pipe or a device, not a file")
    if size > MOST_BYTES:
        raise ValueError(f"it has {size:,} bytes, more than {MOST_BYTES:,}, the limit for text")
    text = path.read_text("utf-8-sig")
    if "\0" in text:
        raise ValueError("it contains NUL bytes, so it isn't text")
    return text


def reason(error: Exception) -> str:
    """Returns the reason in `error` why a file can't be read, for an error message."""
    return getattr(error, "strerror", None) or str(error)


def one_line(text: str) -> str:
    """Returns a file's line `text` for a message: printable and shortened, but (unlike `shown`) without quotes."""
    line = "".join(x if x.isprintable() else repr(x)[1:-1] for x in text[: _SHOWN + 1].strip())
    return line if len(text) <= _SHOWN else f"{line[:_SHOWN]}..."
