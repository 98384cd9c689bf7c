"""Finds, verifies and restores checkpoints."""

import functools
from collections.abc import Callable, Sequence
from pathlib import Path

import tensorflow as tf

from core.arguments import listed
from core.checkpoint.files import checkpoints_in, plainly_named, reason
from core.checkpoint.fit import check_fit, matching
from core.checkpoint.manifest import PREFIX, DamagedError, Manifest, Variables, described, verified
from core.checkpoint.parts import InParts, is_here, read_part
from core.errors import CheckpointError


def newest(directory: Path, *, warn: Callable[[str], None], up_to: int | None = None) -> Manifest | None:
    """Returns the newest undamaged checkpoint up to step `up_to`; `None` if the directory has no checkpoint.

    A damaged checkpoint is reported with `warn`, and the next older one is tried. If all are damaged, a
    `CheckpointError` ends the run, so that it doesn't silently start from step 0.
    """
    try:
        found = [(step, path) for step, path in checkpoints_in(directory) if up_to is None or step <= up_to]
    except OSError as error:
        raise CheckpointError(
            f"`{directory}` could not be searched for checkpoints: {reason(error)}. See that it is a directory you "
            "may read, or choose another `--workdir`."
        ) from error
    problems, vanished = [], False
    for _, path in found:
        try:
            return verified(path)
        except DamagedError as error:
            if not path.exists():  # a running trainer has just replaced it with a newer one
                vanished = True
                continue
            problems.append(f"`{path.name}`: {error}")
            warn(f"Checkpoint `{path}` is damaged and was skipped: {error}. Trying the next older one.")
    if problems:
        raise CheckpointError(
            f"None of the checkpoints in `{directory}` can be used: {'; '.join(problems)}. Put back a good copy of "
            f"one of them. To start afresh on purpose, choose another `--workdir`, or remove `{directory}`."
        )
    return newest(directory, warn=warn, up_to=up_to) if vanished else None


def of_step(directory: Path, step: int) -> Manifest | None:
    """Returns the checkpoint of `step` after verifying every byte; `None` if that step has no checkpoint."""
    paths = [path for of, path in checkpoints_in(directory) if of == step]
    if not paths:
        return None
    try:
        return verified(paths[0])
    except DamagedError as error:
        raise CheckpointError(
            f"Checkpoint `{paths[0]}` is damaged: {error}. Put back a good copy of it, or choose another one."
        ) from error


def steps_in(directory: Path) -> list[int]:
    """Returns the steps of all checkpoints in `directory`, in ascending order; damaged ones are included."""
    return sorted({step for step, _ in checkpoints_in(directory)})


def restore(manifest: Manifest, variables: Variables, *, partial: Sequence[str] = ()) -> None:
    """Assigns `variables` their values from the checkpoint, and compares the result with the manifest.

    Names, shapes and dtypes must match exactly. `partial` has patterns of paths to skip, in the checkpoint or the
    model: `*` (which matches `/` too), `?` and `[...]`. Skipped variables of the model keep their values.
    """
    left_out = matching({*variables, *manifest.variables}, partial, manifest)
    wanted = {path: variable for path, variable in variables.items() if path not in left_out}
    check_fit(manifest, wanted, left_out, partial)
    try:
        with plainly_named(manifest.path) as name:
            whole = {path: variable for path, variable in wanted.items() if not isinstance(variable, InParts)}
            status = tf.train.Checkpoint(variables=whole).read(f"{name}/{PREFIX}")
            status.assert_existing_objects_matched().expect_partial()
            wrong = []
            for path, variable in wanted.items():
                if isinstance(variable, InParts):
                    read = functools.partial(read_part, f"{name}/{PREFIX}", path, variable)
                    variable.assign_parts(read)
                    if not is_here(variable) and not variable.agrees(read):
                        wrong.append(path)
    except tf.errors.ResourceExhaustedError:
        raise  # the checkpoint is fine, but memory is full
    except (OSError, ValueError, AssertionError, LookupError, RuntimeError, tf.errors.OpError) as error:
        raise CheckpointError(
            f"`{manifest.path}` could not be read: {reason(error, manifest.path)}. If it was removed or damaged "
            "since the run looked for it, run the same command again: it takes the newest good one."
        ) from error
    wrong += [path for path, v in wanted.items() if is_here(v) and described(v) != manifest.variables[path]]
    if wrong:
        raise CheckpointError(
            f"Checkpoint `{manifest.path}` was read, but {listed(wrong, most=3)} differ from the saved bytes. "
            "Check this machine's disk and memory, then run the same command again."
        )
