"""Reads and writes objects below one address. An error is a `StorageError` with one line of text.

The servers of S3 and of Google store an object whole or not at all, also one that is sent in parts.
"""

import contextlib
import datetime
import importlib
import logging
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from core.disk import disk_full, unfinished
from core.errors import ConfigurationError, DataError, as_said, shown
from core.signals import held_back
from core.storage.address import SCHEMES, Address

CONNECT_SECONDS, READ_SECONDS = 10, 30  # limits for a connection, and for an answer to a request that was sent
TRIES = 3  # within one call to S3; callers repeat calls that can wait. gcsfs always tries six times
PART_BYTES = 1 << 24  # of a large object: the memory that an upload takes
_MOST_SAID = 300
_PLAIN = (
    "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT"  # gcsfs asks for the bucket's kind before each call, unless this is "false"
)
_REFUSALS = ("ExpiredToken", "InvalidToken", "SignatureDoesNotMatch", "401", "403")  # besides permission errors


class StorageError(Exception):
    """A call to the storage failed. `refused`: it answered, and doesn't accept these credentials or this bucket."""

    def __init__(self, text: str, *, refused: bool = False):
        super().__init__(text)
        self.refused = refused


class Stored(NamedTuple):
    """The size of an object, and when it was written, in seconds since 1970 on the server's clock."""

    bytes: int
    modified: float

    def is_copied(self, path: Path) -> bool:
        """Returns whether `path` is a copy that `Bucket.download` made of this object."""
        return path.is_file() and (path.stat().st_size, path.stat().st_mtime) == tuple(self)


class Bucket:
    """The objects below an `Address`, by name: `metrics.jsonl` or `checkpoints/step-000000100/manifest.json`."""

    def __init__(self, address: Address):
        self.address = address
        self._root = f"{address.bucket}/{address.key}".rstrip("/")
        self._opened: Any = None

    def objects(self, below: str = "", wanted: Callable[[str], bool] = lambda name: True) -> dict[str, Stored]:
        """Returns the `wanted` objects by name, or those in the folder `below`, without markers of folders.

        Raises a `DataError` for a name that would leave a local folder: copies have the names of their objects.
        """
        with self._told():
            self._files.invalidate_cache()
            found = self._files.find(f"{self._root}/{below}".rstrip("/"), detail=True)
            named = {path.partition(f"{self._root}/")[2]: _stored(info) for path, info in found.items()}
        objects = {name: info for name, info in named.items() if name and not name.endswith("/") and wanted(name)}
        for name in objects:
            if not {"", ".", ".."}.isdisjoint(name.split("/")):
                raise DataError(
                    f"the object {shown(f'{self.address.scheme}://{self._root}/{name}')} can't be copied to a file: a "
                    "part of its name is empty, `.` or `..`. Rename or remove it with your storage's tools."
                )
        return objects

    def read(self, name: str) -> bytes | None:
        """Returns an object's content; None if there is no such object."""
        with self._told(), contextlib.suppress(FileNotFoundError):
            return bytes(self._files.cat_file(f"{self._root}/{name}"))
        return None

    def write(self, name: str, content: bytes) -> None:
        """Writes an object."""
        with self._told():
            self._files.pipe_file(f"{self._root}/{name}", content)

    def upload(self, path: Path, name: str) -> None:
        """Writes a file's content to an object."""
        with self._told():
            self._files.put_file(str(path), f"{self._root}/{name}", chunksize=PART_BYTES)

    def download(self, name: str, path: Path, stored: Stored) -> None:
        """Writes an object to a file, which appears once it is whole, with the time of the object."""
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = unfinished(path)
        try:
            with self._told():
                self._files.get_file(f"{self._root}/{name}", str(temporary))
            if (size := temporary.stat().st_size) != stored.bytes:
                raise StorageError(f"`{name}` came with {size:,} of {stored.bytes:,} bytes")
            os.utime(temporary, (stored.modified, stored.modified))
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)

    def remove(self, names: Sequence[str]) -> None:
        """Removes objects one after the other; those that aren't there are fine."""
        for name in names:
            with self._told(), contextlib.suppress(FileNotFoundError):
                self._files.rm_file(f"{self._root}/{name}")

    @property
    def _files(self) -> Any:
        """Returns fsspec's file system. After an error it is made anew: credentials may have been renewed."""
        if self._opened is None:
            self._opened = _file_system(self.address.scheme)
        return self._opened

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        """Turns any error into a `StorageError`, except those of the local disk."""
        try:
            yield
        except (ConfigurationError, StorageError):
            raise
        except Exception as error:  # whatever fsspec, botocore or aiohttp raises
            self._opened = None
            if isinstance(error, OSError) and (full := disk_full(error)):
                raise full from error
            raise _told(error) from error


def _file_system(scheme: str) -> Any:
    os.environ.setdefault(_PLAIN, "false")
    try:
        fsspec = importlib.import_module("fsspec")
        importlib.import_module(SCHEMES[scheme])
        aiohttp = importlib.import_module("aiohttp")
        with held_back(signal.SIGTERM):  # in the thread that talks to servers
            importlib.import_module("fsspec.asyn").get_loop()
        for name in ("botocore", "aiobotocore"):
            logging.getLogger(name).setLevel(logging.WARNING)  # they say where they found credentials
        logging.getLogger("gcsfs").setLevel(logging.CRITICAL)  # it prints each error that it raises, with a traceback
    except ImportError as error:
        raise ConfigurationError(
            f"addresses that begin with `{scheme}://` need a package that can't be imported ({error}): "
            f"`pip install -e '.[{scheme}]'` installs it."
        ) from None
    limits = {"connect_timeout": CONNECT_SECONDS, "read_timeout": READ_SECONDS, "retries": {"max_attempts": 0}}
    patience = aiohttp.ClientTimeout(sock_connect=CONNECT_SECONDS, sock_read=READ_SECONDS)
    settings: dict[str, dict[str, Any]] = {
        "s3": {"config_kwargs": limits, "max_concurrency": 1},
        "gs": {"requests_timeout": patience},
    }
    opened = fsspec.filesystem(scheme, skip_instance_cache=True, use_listings_cache=False, **settings[scheme])
    opened.retries = TRIES
    return opened


def _stored(info: Any) -> Stored:
    modified = info.get("LastModified") or info.get("mtime") or info.get("updated")
    if isinstance(modified, str):
        modified = datetime.datetime.fromisoformat(modified.replace("Z", "+00:00"))
    return Stored(int(info["size"]), modified.timestamp() if isinstance(modified, datetime.datetime) else 0.0)


def _told(error: Exception) -> StorageError:
    text = " ".join(as_said(str(error)).split()).rstrip(".") or type(error).__name__
    answer = getattr(error.__cause__, "response", None)  # botocore's
    code = str(answer["Error"]["Code"] if answer else getattr(error, "code", ""))  # or Google's
    refused = isinstance(error, FileNotFoundError | PermissionError) or code in _REFUSALS
    refused |= "Credentials" in type(error).__name__ or "Refresh" in type(error).__name__
    refused |= isinstance(error, OSError) and text.startswith("Forbidden")  # gcsfs's words
    if isinstance(error, FileNotFoundError) and not answer:
        text = f"there is no such bucket or object ({text})"  # gcsfs names a URL only
    return StorageError(text if len(text) <= _MOST_SAID else f"{text[:_MOST_SAID]} ...", refused=refused)
