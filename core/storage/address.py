"""Addresses in object storage.

>>> parse_address("s3://bucket/runs/mine", "--workdir").folder.as_posix()
'runs/s3/bucket/runs/mine'
"""

import dataclasses
import re
from pathlib import Path

from core.errors import ConfigurationError

SCHEMES = {"s3": "s3fs", "gs": "gcsfs"}  # the package for each, which the extra of the same name installs
_ADDRESS = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://(.*)", re.DOTALL)
_PART = re.compile(r"[\w.,=@+ -]+")  # of a path: readable as a file name, and without special meaning in an address


@dataclasses.dataclass(frozen=True)
class Address:
    """A place in object storage. Below it, objects have names like those of files in a folder."""

    scheme: str
    bucket: str
    key: str

    def __str__(self) -> str:
        return f"{self.scheme}://{self.bucket}/{self.key}"

    @property
    def folder(self) -> Path:
        """Returns the local folder of a run with this address."""
        return Path("runs", self.scheme, self.bucket, self.key)


def is_address(text: str) -> bool:
    """Returns whether `text` is an address of any scheme, and no path of a file."""
    return _ADDRESS.match(text) is not None


def parse_address(text: str, name: str, *, root: bool = False) -> Address:
    """Parses `text`, the value of `name`; with `root`, it may be the bucket itself, as `s3://bucket/`.

    Raises a `ConfigurationError` if it isn't an address of object storage.
    """
    found = _ADDRESS.fullmatch(text)
    scheme, path = (found[1], found[2]) if found else ("", "")
    if scheme not in SCHEMES:
        raise ConfigurationError(
            f"`{name}` is {text!r}; an address begins with {' or '.join(f'`{each}://`' for each in SCHEMES)}. Other "
            "storage works if it is mounted as a folder: give the folder."
        )
    bucket, _, key = path.partition("/")
    parts = [bucket] if root and not key else [bucket, *key.removesuffix("/").split("/")]
    if not all(_PART.fullmatch(part) and part.strip(".") for part in parts):
        raise ConfigurationError(
            f"`{name}` is {text!r}; give a bucket and a folder in it, as '{scheme}://bucket/runs/mine'."
        )
    return Address(scheme, bucket, "/".join(parts[1:]))
