"""Files of configuration as text, whatever lies under their names."""

from pathlib import Path

MOST_BYTES = 16 * 2**20  # nobody writes a longer one by hand
MOST_DEEP = 50  # of files within files, and of brackets within brackets
_SHOWN = 200  # letters of a line in a message


def read_text(path: Path) -> str:
    """Returns the text of a file; raises an `OSError`, or a `ValueError` that says why it is none."""
    size = path.stat().st_size
    if not path.is_file():  # a pipe would be waited for, a device may have no end
        raise ValueError("it is a directory" if path.is_dir() else "it is a pipe or a device, no file")
    if size > MOST_BYTES:
        raise ValueError(f"it has {size:,} bytes, more than the {MOST_BYTES:,} that are taken for text")
    text = path.read_text("utf-8-sig")
    if "\0" in text:
        raise ValueError("it holds NUL bytes, as no text does")
    return text


def reason(error: Exception) -> str:
    """Returns why a file can't be read, for a message that names it."""
    return getattr(error, "strerror", None) or str(error)


def one_line(text: str) -> str:
    """Returns what a file says, for a message: as it stands there, not as a value (`core.errors.shown`), but cut short
    and without what would act on a terminal.
    """
    line = "".join(x if x.isprintable() else repr(x)[1:-1] for x in text[: _SHOWN + 1].strip())
    return line if len(text) <= _SHOWN else f"{line[:_SHOWN]}..."
