"""A checkpoint's manifest: step, data position, and the SHA-256 of every file and every variable."""

import contextlib
import dataclasses
import hashlib
import json
import os
import reprlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from core.checkpoint import parts
from core.checkpoint.files import file_sha256, plain_file, reason, step_of_name
from core.checkpoint.parts import InParts, Typed, read_part

Variables = Mapping[str, tf.Variable]  # by path

MANIFEST = "manifest.json"
_MOST_BYTES = 1 << 28  # a million variables take 200 MB
PREFIX = "variables"  # of the TensorFlow checkpoint next to it


class SavedVariable(NamedTuple):
    """A manifest's entry for one variable: shape, dtype and SHA-256."""

    shape: tuple[int, ...]
    dtype: str
    sha256: str  # of its bytes in row-major order

    def __str__(self) -> str:
        return type_name(self.dtype, self.shape)


@dataclasses.dataclass(frozen=True)
class Manifest:
    """The parsed manifest of the checkpoint at `path`."""

    path: Path
    step: int
    examples: int  # consumed so far: the position of the run in its data
    config_hash: str
    variables: Mapping[str, SavedVariable]
    extra: Mapping[str, Any]
    files: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)  # bytes and SHA-256 of each


class DamagedError(Exception):
    """A damaged checkpoint. The message completes the sentence "Checkpoint `...` is damaged: <message>"."""


def described(variable: tf.Variable) -> SavedVariable:
    if isinstance(variable, InParts) and variable.dtype != tf.string:
        return _of_parts(variable, variable.parts(parts.MOST_BYTES))
    with tf.device("CPU:0"):
        return described_value(tf.identity(variable.read_value()))  # of a mirrored variable, the first replica's


def described_value(value: tf.Tensor) -> SavedVariable:
    # A string tensor holds pointers, so strings are hashed in serialised form.
    content = tf.io.serialize_tensor(value).numpy() if value.dtype == tf.string else bytes_of(value)
    return SavedVariable(tuple(value.shape), value.dtype.name, hashlib.sha256(content).hexdigest())


def bytes_of(value: Any) -> memoryview:
    """Returns the bytes of a tensor on the host, or of an array in row-major order, without a copy."""
    return np.frombuffer(value, np.uint8).data


def described_in(prefix: str, path: str, variable: Typed) -> SavedVariable:
    """Returns the `SavedVariable` of a variable in a checkpoint file. It reads part by part, to save memory."""
    boxes = parts.in_order(tuple(variable.shape), max(1, parts.MOST_BYTES // variable.dtype.size))
    return _of_parts(variable, (read_part(prefix, path, variable, box) for box in boxes))


def _of_parts(variable: Typed, values: Iterable[Any]) -> SavedVariable:
    digest = hashlib.sha256()
    for value in values:
        digest.update(bytes_of(value))
    return SavedVariable(tuple(variable.shape), variable.dtype.name, digest.hexdigest())


def type_name(dtype: str, shape: Iterable[int]) -> str:
    return f"{dtype}[{','.join(map(str, shape))}]"


def manifest_text(content: Mapping[str, Any]) -> str:
    content = json.loads(json.dumps(content))  # as a reader will see it
    return json.dumps({**content, "sha256": _content_sha256(content)}, indent=1) + "\n"


def _content_sha256(content: Mapping[str, Any]) -> str:
    """Returns the checksum of the manifest's text. It protects numbers such as the data position."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def verified(path: Path) -> Manifest:
    """Returns the manifest of the checkpoint at `path`. A file with another SHA-256 raises a `DamagedError`."""
    with _damage_told():
        manifest = read_manifest(path)
        for name, entry in manifest.files.items():
            size = (path / name).stat().st_size
            if size != entry["bytes"]:
                raise DamagedError(f"`{name}` has {size:,} bytes where {entry['bytes']:,} were written")
            if file_sha256(path / name) != entry["sha256"]:
                raise DamagedError(f"`{name}` is not as it was written (its SHA-256 differs)")
        return manifest


def read_manifest(path: Path) -> Manifest:
    """Returns the manifest of the checkpoint at `path`. A damaged manifest raises a `DamagedError`."""
    with _damage_told():
        with plain_file(path / MANIFEST) as stream:
            size = os.fstat(stream.fileno()).st_size
            _expect(size <= _MOST_BYTES, "size", f"more than {_MOST_BYTES:,} bytes")
            content = json.loads(stream.read())
        if not isinstance(content, dict) or content.pop("sha256", None) != _content_sha256(content):
            raise DamagedError(f"`{MANIFEST}` is not as it was written")
        manifest = _parsed(path, content)
        if step_of_name(path) not in (None, manifest.step):
            raise DamagedError(f"its folder is that of another step: `{MANIFEST}` is of step {manifest.step}")
        return manifest


@contextlib.contextmanager
def _damage_told() -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        raise DamagedError(f"`{Path(error.filename).name}` is missing") from error
    except OSError as error:
        raise DamagedError(reason(error)) from error
    except (ValueError, RecursionError) as error:
        raise DamagedError(f"`{MANIFEST}` is not JSON ({error})") from error
    except (KeyError, TypeError, AttributeError) as error:
        raise DamagedError(f"`{MANIFEST}` is of another version of Tapeloop ({error!r})") from error


def _parsed(path: Path, content: Mapping[str, Any]) -> Manifest:
    """Converts a manifest's JSON `content` to a `Manifest`; raises a `DamagedError` for an entry of the wrong type."""
    for name, entry in content["files"].items():
        within = name.isprintable() and "/" not in name and name not in ("", ".", "..", MANIFEST)
        _expect(within, "a name in `files`", name)
        _expect(_is_count(entry["bytes"]), f"the size of `{name}`", entry["bytes"])
    _expect(f"{PREFIX}.index" in content["files"], "`files`", list(content["files"]))
    for name in ("step", "examples"):
        _expect(_is_count(content[name]), f"`{name}`", content[name])
    _expect(isinstance(content["config_hash"], str), "`config_hash`", content["config_hash"])
    _expect(isinstance(content["extra"], dict), "`extra`", content["extra"])
    for name, entry in content["variables"].items():
        shape = entry["shape"]
        _expect(isinstance(shape, list) and all(map(_is_count, shape)), f"the shape of `{name}`", shape)
        _expect(isinstance(entry["dtype"], str), f"the dtype of `{name}`", entry["dtype"])
        _expect(isinstance(entry["sha256"], str), f"the SHA-256 of `{name}`", entry["sha256"])
    variables = {
        name: SavedVariable(tuple(entry["shape"]), entry["dtype"], entry["sha256"])
        for name, entry in content["variables"].items()
    }
    return Manifest(
        path,
        content["step"],
        content["examples"],
        content["config_hash"],
        variables,
        content["extra"],
        content["files"],
    )


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**63


def _expect(holds: bool, what: str, value: Any) -> None:
    if not holds:
        raise DamagedError(f"`{MANIFEST}` isn't one of Tapeloop's: {what} is {reprlib.repr(value)}")
