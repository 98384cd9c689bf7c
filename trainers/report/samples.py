"""What a run has left in `samples/`: pictures and texts, some of them, from the first to the last."""

import base64
import stat
from collections.abc import Iterator
from html import escape
from pathlib import Path

from core.errors import as_said

MOST = 4  # of a run
MOST_BYTES = 4 << 20  # of a file
PNG = b"\x89PNG\r\n\x1a\n"


def samples(folder: Path) -> Iterator[str]:
    """Yields a figure of HTML for each sample that is shown."""
    files = sorted(path for path in folder.glob("step-*") if path.suffix in (".png", ".txt") and _is_file(path))
    for i in sorted({round(k * (len(files) - 1) / (MOST - 1)) for k in range(MOST)} if files else ()):
        path = files[i]
        try:
            content = path.read_bytes()
        except OSError:  # somebody else's, or gone since
            continue
        name = escape(as_said(path.stem))
        if path.suffix == ".txt":
            yield f"<figure><figcaption>{name}</figcaption><pre>{escape(_readable(content))}</pre></figure>"
        elif content.startswith(PNG):
            data = base64.b64encode(content).decode()
            image = f'<img alt="{name}" src="data:image/png;base64,{data}">'
            yield f"<figure><figcaption>{name}</figcaption>{image}</figure>"


def _is_file(path: Path) -> bool:
    """Tells whether it is a plain file that isn't too large."""
    try:
        found = path.stat()
        return stat.S_ISREG(found.st_mode) and found.st_size <= MOST_BYTES
    except OSError:
        return False


def _readable(content: bytes) -> str:
    text = content.decode("utf-8", "backslashreplace")
    return "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text)
