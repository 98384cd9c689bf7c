"""Checkpoints that are whole or not there at all: save, verify, restore, fall back.

A checkpoint is a directory `step-000001000/` with two things in it: a TensorFlow checkpoint under the prefix
`variables`, and `manifest.json` with the step, the data position and the SHA-256 of every file and every variable.

    >>> import tempfile
    >>> import tensorflow as tf
    >>> w, directory = tf.Variable([1.0, 2.0]), Path(tempfile.mkdtemp())
    >>> save(directory, {"net/w": w}, step=1000, examples=32000, config_hash="c0ffee").name
    'step-000001000'
    >>> _ = w.assign([0.0, 0.0])
    >>> manifest = newest(directory, warn=print)
    >>> restore(manifest, {"net/w": w})
    >>> manifest.step, manifest.examples, w.numpy().tolist()
    (1000, 32000, [1.0, 2.0])

Nobody needs Tapeloop to read one. TensorFlow's key of a variable is its path with `.` doubled and `/` written `.S`:

    >>> reader = tf.train.load_checkpoint(manifest.path / "variables")
    >>> reader.get_tensor("variables/net.Sw/.ATTRIBUTES/VARIABLE_VALUE").tolist()
    [1.0, 2.0]

A directory has one writer at a time, and any number of readers.
"""

import dataclasses
import difflib
import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from core.errors import CheckpointError, did_you_mean
from core.versions import versions

Variables = Mapping[str, tf.Variable]  # by path

_PREFIX = "variables"
_MANIFEST = "manifest.json"
_TEMPORARY = ".tmp-"  # begins the name of what is being written or removed, and isn't a checkpoint
_REPLACED = ".replaced"  # ends the name of a checkpoint that another of the same step is about to replace
_NAME = re.compile(rf"step-(\d{{9,}})({re.escape(_REPLACED)})?")
_MAX_ROWS = 30  # of the table of what doesn't fit


class SavedVariable(NamedTuple):
    """What a manifest says of one variable."""

    shape: tuple[int, ...]
    dtype: str
    sha256: str  # of its bytes in row-major order

    def __str__(self) -> str:
        return _type_name(self.dtype, self.shape)


@dataclasses.dataclass(frozen=True)
class Manifest:
    """A checkpoint whose files were found to be as they were written."""

    path: Path
    step: int
    examples: int  # consumed so far: the position of the run in its data
    config_hash: str
    variables: Mapping[str, SavedVariable]
    extra: Mapping[str, Any]


def path_of(directory: Path, step: int) -> Path:
    """Where the checkpoint of a step lies."""
    return directory / f"step-{step:09d}"


class _DamagedError(Exception):
    """What is wrong with one checkpoint, as the end of a sentence."""


def save(
    directory: Path,
    variables: Variables,
    *,
    step: int,
    examples: int,
    config_hash: str,
    keep: int = 3,
    extra: Mapping[str, Any] = MappingProxyType({}),
) -> Path:
    """Writes `directory/step-<step>/` in one atomic move, then removes older checkpoints beyond the `keep` newest.

    `extra` is anything that JSON holds. Whenever the process dies, `newest` finds either the checkpoint that was there
    before, or this one, whole.
    """
    if keep < 1:
        raise ValueError(f"`keep` is {keep}; at least the checkpoint that was just written is kept: give 1 or more.")
    target = path_of(directory, step)
    temporary = directory / f"{_TEMPORARY}{target.name}"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        _remove_leftovers(directory)
        temporary.mkdir()
        tf.train.Checkpoint(variables=dict(variables)).write(str(temporary / _PREFIX))
        content = {
            "step": step,
            "examples": examples,
            "config_hash": config_hash,
            "files": {file.name: _seal(file) for file in sorted(temporary.iterdir())},
            "variables": {path: _describe(variable)._asdict() for path, variable in sorted(variables.items())},
            "versions": versions(),
            "extra": dict(extra),
        }
        (temporary / _MANIFEST).write_text(_manifest_text(content))
        _sync(temporary / _MANIFEST)
        _sync(temporary)
        _put_in_place(temporary, target)
        _remove_old(directory, step, keep)
    except (OSError, tf.errors.OpError) as error:
        shutil.rmtree(temporary, ignore_errors=True)
        raise CheckpointError(
            f"The checkpoint of step {step} could not be written to `{directory}`: {_reason(error)}. Make room and see "
            "that you may write there, or choose another `--workdir`; the checkpoints from before are untouched."
        ) from error
    return target


def newest(directory: Path, *, warn: Callable[[str], None]) -> Manifest | None:
    """The newest checkpoint whose manifest and files are as they were written; `None` if there has never been one.

    A damaged one is reported through `warn` and the next older one tried. If all are damaged that is an error: a run
    must not start afresh because its past can't be read.
    """
    try:
        found = _checkpoints(directory)
    except OSError as error:
        raise CheckpointError(
            f"`{directory}` could not be searched for checkpoints: {_reason(error)}. See that it is a directory you "
            "may read, or choose another `--workdir`."
        ) from error
    problems, vanished = [], False
    for _, path in found:
        try:
            return _verified(path)
        except _DamagedError as error:
            if not path.exists():  # a running trainer has just replaced it by a newer one
                vanished = True
                continue
            problems.append(f"`{path.name}`: {error}")
            warn(f"Checkpoint `{path}` is damaged and was passed over: {error}. Trying the next older one.")
    if problems:
        raise CheckpointError(
            f"None of the checkpoints in `{directory}` can be used: {'; '.join(problems)}. Put back a good copy of "
            f"one of them. To start afresh on purpose, choose another `--workdir`, or remove `{directory}`."
        )
    return newest(directory, warn=warn) if vanished else None


def restore(manifest: Manifest, variables: Variables, *, partial: Sequence[str] = ()) -> None:
    """Gives `variables` the values they were saved with, and checks that they have them.

    Names, shapes and dtypes must match exactly. Variables (live or saved) whose path matches a pattern of `partial`
    (`*`, `?` and `[...]`; `*` matches `/` too) are left out: the live ones stay as they are.
    """
    left_out = _matching({*variables, *manifest.variables}, partial, manifest)
    wanted = {path: variable for path, variable in variables.items() if path not in left_out}
    _check_fit(manifest, wanted, left_out)
    try:
        status = tf.train.Checkpoint(variables=wanted).read(str(manifest.path / _PREFIX))
        status.assert_existing_objects_matched().expect_partial()
    except (OSError, ValueError, AssertionError, LookupError, RuntimeError, tf.errors.OpError) as error:
        raise CheckpointError(
            f"`{manifest.path}` could not be read: {_reason(error)}. If it was removed or damaged since the run looked "
            "for it, run the same command again: it takes the newest good one."
        ) from error
    wrong = [path for path, variable in wanted.items() if _describe(variable) != manifest.variables[path]]
    if wrong:
        raise CheckpointError(
            f"Checkpoint `{manifest.path}` was read, but {_listed(wrong)} came out with other bytes than were saved. "
            "Check this machine's disk and memory, then run the same command again."
        )


def _describe(variable: tf.Variable) -> SavedVariable:
    value = np.asarray(variable.numpy())  # of a mirrored variable, the first replica's
    # A NumPy array of strings holds addresses, so strings go by their serialised form.
    content = tf.io.serialize_tensor(value).numpy() if value.dtype == object else value.tobytes()
    return SavedVariable(tuple(value.shape), variable.dtype.name, hashlib.sha256(content).hexdigest())


def _type_name(dtype: str, shape: Iterable[int]) -> str:
    return f"{dtype}[{','.join(map(str, shape))}]"


# --- Files -----------------------------------------------------------------------------------------------------------


def _checkpoints(directory: Path) -> list[tuple[int, Path]]:
    """Steps and places of the checkpoints, newest first; one that is being replaced follows its replacement."""
    if not directory.exists():
        return []
    found = [(_NAME.fullmatch(path.name), path) for path in directory.iterdir()]
    steps = [(int(match[1]), path) for match, path in found if match]
    return sorted(steps, key=lambda step_and_path: (-step_and_path[0], step_and_path[1].name))


def _put_in_place(temporary: Path, target: Path) -> None:
    """Renames `temporary` to `target`. A checkpoint that was there goes, until then, by a name that counts too."""
    replaced = target.with_name(target.name + _REPLACED)
    if target.exists():
        target.rename(replaced)
    temporary.rename(target)
    _sync(target.parent)
    _remove(replaced)


def _remove_leftovers(directory: Path) -> None:
    """Removes what a killed run had begun to write or to remove."""
    for path in directory.glob(f"{_TEMPORARY}*"):
        shutil.rmtree(path)
    for path in directory.glob(f"*{_REPLACED}"):
        if path.with_name(path.name.removesuffix(_REPLACED)).exists():
            _remove(path)


def _remove_old(directory: Path, step: int, keep: int) -> None:
    """Removes all but the `keep` newest up to `step`: a later one is damaged, or somebody went back on purpose."""
    for _, path in [found for found in _checkpoints(directory) if found[0] <= step][keep:]:
        _remove(path)


def _remove(path: Path) -> None:
    """Removes a checkpoint, under another name so that nobody ever sees half of it."""
    if path.exists():
        doomed = path.with_name(f"{_TEMPORARY}removed-{path.name}")
        path.rename(doomed)
        shutil.rmtree(doomed)


def _sync(path: Path) -> None:
    """Waits until a file's bytes, or a directory's names, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _seal(file: Path) -> dict[str, Any]:
    _sync(file)
    return {"bytes": file.stat().st_size, "sha256": _file_sha256(file)}


def _file_sha256(file: Path) -> str:
    digest = hashlib.sha256()
    with file.open("rb") as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


# --- The manifest ----------------------------------------------------------------------------------------------------


def _manifest_text(content: Mapping[str, Any]) -> str:
    content = json.loads(json.dumps(content))  # as a reader will see it
    return json.dumps({**content, "sha256": _content_sha256(content)}, indent=1) + "\n"


def _content_sha256(content: Mapping[str, Any]) -> str:
    """A manifest vouches for itself too: one flipped digit would move the run to another place in its data."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _verified(path: Path) -> Manifest:
    """The manifest of the checkpoint at `path`, after a look at every byte; raises `_DamagedError`."""
    try:
        content = json.loads((path / _MANIFEST).read_bytes())
        if not isinstance(content, dict) or content.pop("sha256", None) != _content_sha256(content):
            raise _DamagedError(f"`{_MANIFEST}` is not as it was written")
        for name, entry in content["files"].items():
            size = (path / name).stat().st_size
            if size != entry["bytes"]:
                raise _DamagedError(f"`{name}` has {size:,} bytes where {entry['bytes']:,} were written")
            if _file_sha256(path / name) != entry["sha256"]:
                raise _DamagedError(f"`{name}` is not as it was written (its SHA-256 differs)")
        variables = {
            name: SavedVariable(tuple(entry["shape"]), entry["dtype"], entry["sha256"])
            for name, entry in content["variables"].items()
        }
        return Manifest(path, content["step"], content["examples"], content["config_hash"], variables, content["extra"])
    except FileNotFoundError as error:
        raise _DamagedError(f"`{Path(error.filename).name}` is missing") from error
    except OSError as error:
        raise _DamagedError(_reason(error)) from error
    except ValueError as error:
        raise _DamagedError(f"`{_MANIFEST}` is not JSON ({error})") from error
    except (KeyError, TypeError, AttributeError) as error:
        raise _DamagedError(f"`{_MANIFEST}` is of another version of Tapeloop ({error!r})") from error


# --- What doesn't fit ------------------------------------------------------------------------------------------------


def _matching(paths: set[str], patterns: Sequence[str], manifest: Manifest) -> set[str]:
    matched: set[str] = set()
    for pattern in patterns:
        hits = {path for path in paths if fnmatchcase(path, pattern)}
        if not hits:
            raise CheckpointError(
                f"`partial` has the pattern {pattern!r}, which matches no variable of the model and none of checkpoint "
                f"`{manifest.path}`.{did_you_mean(pattern, paths)} Correct it, or take it out."
            )
        matched |= hits
    return matched


def _check_fit(manifest: Manifest, live: Variables, left_out: set[str]) -> None:
    here = {path: _type_name(variable.dtype.name, variable.shape) for path, variable in live.items()}
    saved = {path: str(entry) for path, entry in manifest.variables.items() if path not in left_out}
    missing = [path for path in here if path not in saved]
    unexpected = [path for path in saved if path not in here]
    misshapen = [path for path in here if path in saved and here[path] != saved[path]]
    rows = [("missing", path, here[path], "-") for path in missing]
    rows += [("unexpected", path, "-", saved[path]) for path in unexpected]
    rows += [("misshapen", path, here[path], saved[path]) for path in misshapen]
    if not rows:
        return
    renamed = []
    for path in missing:
        same_type = [other for other in unexpected if saved[other] == here[path]]
        renamed += [(near, path) for near in difflib.get_close_matches(path, same_type, n=1, cutoff=0.4)]
    hint = "; ".join(f"`{old}` may now be called `{new}`" for old, new in renamed[:3])
    example = (misshapen or missing or unexpected)[0]
    raise CheckpointError(
        f"Checkpoint `{manifest.path}` doesn't fit this model:\n{_table(rows)}\n"
        + (f"{hint[0].upper()}{hint[1:]}. " if hint else "")
        + "Build the model as it was when saved, or begin another `--workdir`. To take over only what fits, name "
        f'the rest: `restore(manifest, variables, partial=["{example}"])` leaves what matches as it is.'
    )


def _table(rows: Sequence[tuple[str, str, str, str]]) -> str:
    shown = [("", "variable", "this model", "checkpoint"), *rows[:_MAX_ROWS]]
    widths = [max(len(row[column]) for row in shown) for column in range(4)]
    lines = ["  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in shown]
    more = [f"  ... and {len(rows) - _MAX_ROWS} more"] if len(rows) > _MAX_ROWS else []
    return "\n".join(line.rstrip() for line in lines + more)


def _listed(paths: Sequence[str]) -> str:
    more = f" and {len(paths) - 3} more" if len(paths) > 3 else ""
    return ", ".join(f"`{path}`" for path in paths[:3]) + more


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror} (`{error.filename}`)" if error.filename else error.strerror
    return str(error).strip().split("\n")[0].rstrip(".")
