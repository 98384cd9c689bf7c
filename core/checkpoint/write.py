"""Writes a checkpoint: whole, or not at all."""

import shutil
import warnings
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

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
from core.checkpoint.manifest import MANIFEST, PREFIX, Variables, described, manifest_text
from core.checkpoint.versions import versions
from core.errors import CheckpointError


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
) -> Path:
    """Writes `directory/step-<step>/` in one atomic move, then removes older checkpoints beyond the `keep` newest.

    `extra` is anything that JSON holds. Whenever the process dies, `newest` finds either the checkpoint that was there
    before, or this one, whole. An older one that can't be removed is reported through `warn`.
    """
    if keep < 1:
        raise ValueError(f"`keep` is {keep}; at least the checkpoint that was just written is kept: give 1 or more.")
    target = path_of(directory, step)
    temporary = directory / f"{TEMPORARY}{target.name}"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        remove_leftovers(directory, warn)
        temporary = free_name(temporary)
        temporary.mkdir()
        with plainly_named(temporary) as name:
            tf.train.Checkpoint(variables=dict(variables)).write(f"{name}/{PREFIX}")
        content = {
            "step": step,
            "examples": examples,
            "config_hash": config_hash,
            "files": {file.name: seal(file) for file in sorted(temporary.iterdir())},
            "variables": {path: described(variable)._asdict() for path, variable in sorted(variables.items())},
            "versions": versions(),
            "extra": dict(extra),
        }
        (temporary / MANIFEST).write_text(manifest_text(content), "utf-8")
        sync(temporary / MANIFEST)
        sync(temporary)
        put_in_place(temporary, target, warn)
        remove_old(directory, step, keep, warn)
    except (OSError, tf.errors.OpError) as error:
        shutil.rmtree(temporary, ignore_errors=True)
        if isinstance(error, tf.errors.ResourceExhaustedError) and "OOM" in error.message:
            raise  # it is memory that there is none of: the disk isn't to blame
        raise CheckpointError(
            f"The checkpoint of step {step} could not be written to `{directory}`: {reason(error, temporary)}. Make "
            "room and see that you may write there, or choose another `--workdir`; the checkpoints from before are "
            "untouched."
        ) from error
    return target
