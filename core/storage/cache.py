"""Data files from object storage: a copy in the user's cache, which is renewed or removed as the object is."""

import contextlib
import fnmatch
import functools
import os
import re
from collections.abc import Collection
from pathlib import Path

from core.errors import ConfigurationError, DataError, shown
from core.storage.address import Address, parse_address
from core.storage.bucket import Bucket, StorageError, Stored

_PATTERN = re.compile(r"[*?\[]")


@functools.cache
def cached(text: str) -> Path:
    """Downloads what the address `text` names: an object, a folder, or all that match a pattern such as `data/*.csv`.

    Returns the path of the local copy; of a pattern, the same pattern for local files. A process looks once.
    """
    key = text.partition("://")[2].partition("/")[2]
    parts = key.split("/")
    fixed = next((i for i, part in enumerate(parts) if _PATTERN.search(part)), len(parts))
    whole = text.removesuffix(key) + "/".join(parts[:fixed])
    try:
        address = parse_address(whole, "path", root=fixed < len(parts))
        root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tapeloop" / address.scheme
        folder = root / address.bucket
        bucket = Bucket(Address(address.scheme, address.bucket, ""))
        wanted = functools.partial(_matches, key=key.rstrip("/"))
        found = bucket.objects(address.key, wanted)
        if not found:
            raise DataError(f"{shown(text)} names no object: check the address, or list it with your storage's tools.")
        copies = [path for path in _files(folder / address.key) if wanted(path.relative_to(folder).as_posix())]
        _remove_others(copies, folder, found, text)
        _renew(bucket, folder, found, text)
    except ConfigurationError as error:
        raise DataError(str(error)) from None
    except StorageError as error:
        raise DataError(f"{shown(text)} can't be read: {error}. Check your credentials and the server.") from error
    return folder / key


def _matches(name: str, key: str) -> bool:
    if not _PATTERN.search(key):
        return name == key or name.startswith(f"{key}/")
    return fnmatch.fnmatchcase(name, key.replace("**/", "*")) and ("**" in key or name.count("/") == key.count("/"))


def _files(root: Path) -> list[Path]:
    """Returns the files below `root`, or `root` itself, without those that a process is downloading."""
    return [path for path in (root, *root.rglob("*")) if path.is_file() and not path.match(".*.tmp")]


def _remove_others(copies: list[Path], folder: Path, found: Collection[str], text: str) -> None:
    """Removes copies of objects that are there no longer, and files where `found` ones need a folder."""
    kept = {folder / name for name in found}
    folders = {parent for path in kept for parent in path.parents}
    others = [*(set(copies) - kept), *(path for path in folders if path.is_file())]
    if others:
        print(f"removing {len(others)} files from `{folder}`: {text} has them no longer", flush=True)
    for path in others:
        path.unlink(missing_ok=True)
        for parent in path.parents:  # a folder may be a class of images
            if parent in folders:
                break  # another process may have made it just now
            with contextlib.suppress(OSError):  # it isn't empty
                parent.rmdir()


def _renew(bucket: Bucket, folder: Path, found: dict[str, Stored], text: str) -> None:
    old = {name: stored for name, stored in found.items() if not stored.is_copied(folder / name)}
    if old:
        megabytes = sum(stored.bytes for stored in old.values()) / 1e6
        print(f"downloading {len(old)} files, {megabytes:,.1f} MB, from {text} to `{folder}`", flush=True)
    for name, stored in old.items():
        bucket.download(name, folder / name, stored)
