"""Writes a checkpoint: whole, or not at all."""

import contextlib
import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import tensorflow as tf

from core.checkpoint.files import (
    TEMPORARY,
    Warn,
    free_name,
    path_of,
    plainly_named,
    put_in_place,
    reason,
    remove_leftovers,
    remove_old,
    seal,
    sync,
)
from core.checkpoint.manifest import (
    MANIFEST,
    PREFIX,
    SavedVariable,
    Variables,
    described,
    described_in,
    manifest_text,
)
from core.checkpoint.parts import is_here, merge, write_slices, writers_of
from core.checkpoint.versions import versions
from core.errors import CheckpointError


class Peers(NamedTuple):
    """Says to a process which of several it is that hold parts of the same variables, and how they tell each other.

    `first_text` returns to all of them, who each call it, the text of the first that has one.
    """

    worker: int = 0
    workers: int = 1
    first_text: Callable[[str | None], str | None] = lambda text: text


ALONE = Peers()


def save(
    directory: Path,
    variables: Variables,
    *,
    step: int,
    examples: int,
    config_hash: str,
    keep: int = 3,
    extra: Mapping[str, Any] = MappingProxyType({}),
    warn: Warn = warnings.warn,
    peers: Peers = ALONE,
) -> Path:
    """Writes `directory/step-<step>/` in one atomic move, then removes older checkpoints beyond the `keep` newest.

    `extra` is anything that JSON holds. Whenever the process dies, `newest` finds either the checkpoint that was there
    before, or this one, whole. An older one that can't be removed is reported through `warn`. Where `peers` hold parts
    of `variables` all of them call it: each writes its own, and the first all the rest.
    """
    if keep < 1:
        raise ValueError(f"`keep` is {keep}; at least the checkpoint that was just written is kept: give 1 or more.")
    target, is_first = path_of(directory, step), peers.worker == 0
    temporary: Path | None = None
    errors: list[Exception] = []
    with _kept(errors):
        if is_first:
            temporary = _made_folder(directory, target.name, warn)
    # Where this one fails it says so: the others would wait, and then know no more than that it was lost.
    name = peers.first_text(temporary.name if temporary else None)
    if name is not None:
        temporary = directory / name
        with _kept(errors):
            _write(temporary, variables, peers.worker)
    problem = peers.first_text(_said(errors, temporary, peers))
    if problem is None and is_first:
        assert temporary is not None
        with _kept(errors):
            hashes = _hashes(temporary, variables)
            content = {
                "step": step,
                "examples": examples,
                "config_hash": config_hash,
                "files": {file.name: seal(file) for file in sorted(temporary.iterdir())},
                "variables": {path: found._asdict() for path, found in hashes.items()},
                "versions": versions(),
                "extra": dict(extra),
            }
            (temporary / MANIFEST).write_text(manifest_text(content), "utf-8")
            sync(temporary / MANIFEST)
            sync(temporary)
            put_in_place(temporary, target, warn)
            remove_old(directory, step, keep, warn)
        problem = _said(errors, temporary, peers)
    if problem is not None:
        if is_first and temporary is not None:
            shutil.rmtree(temporary, ignore_errors=True)
        error = errors[0] if errors else None
        if isinstance(error, tf.errors.ResourceExhaustedError) and "OOM" in error.message:
            raise error  # it is memory that there is none of: the disk isn't to blame
        if isinstance(error, tf.errors.UnavailableError | tf.errors.AbortedError):
            raise error  # who keeps the variables is gone: whoever asked for the save knows who that was
        raise CheckpointError(
            f"The checkpoint of step {step} could not be written to `{directory}`: {problem}. Make room and see that "
            "you may write there, or choose another `--workdir`; the checkpoints from before are untouched."
        ) from error
    return target


@contextlib.contextmanager
def _kept(errors: list[Exception]) -> Iterator[None]:
    """Keeps what goes wrong for later: nobody may leave while others wait."""
    try:
        yield
    except (OSError, tf.errors.OpError) as error:
        errors.append(error)


def _said(errors: list[Exception], temporary: Path | None, peers: Peers) -> str | None:
    """Returns what went wrong, and where there are several whose it is."""
    if not errors:
        return None
    return (
        f"worker {peers.worker}: {reason(errors[0], temporary)}" if peers.workers > 1 else reason(errors[0], temporary)
    )


def _made_folder(directory: Path, name: str, warn: Warn) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    remove_leftovers(directory, warn)
    temporary = free_name(directory / f"{TEMPORARY}{name}")
    temporary.mkdir()
    return temporary


def _write(temporary: Path, variables: Variables, worker: int) -> None:
    """Writes what is this process' to write: the first writes all but what others alone hold."""
    writers = writers_of(variables)
    with plainly_named(temporary) as name:
        if worker == 0:
            prefix = PREFIX if writers == [0] else _prefix_of(worker)
            tf.train.Checkpoint(variables=dict(variables)).write(f"{name}/{prefix}")
        elif worker in writers:
            write_slices(f"{name}/{_prefix_of(worker)}", variables)
            for file in temporary.glob(f"{_prefix_of(worker)}.*"):
                sync(file)  # from another machine nobody can


def _hashes(temporary: Path, variables: Variables) -> dict[str, SavedVariable]:
    """Puts together what all have written; returns what was saved of each variable."""
    writers = writers_of(variables)
    with plainly_named(temporary) as name:
        if writers != [0]:
            merge([f"{name}/{_prefix_of(worker)}" for worker in writers], f"{name}/{PREFIX}")
        return {
            path: described(variable) if is_here(variable) else described_in(f"{name}/{PREFIX}", path, variable)
            for path, variable in sorted(variables.items())
        }


def _prefix_of(worker: int) -> str:
    return f"{PREFIX}-{worker}"
