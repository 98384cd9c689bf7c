"""Copies variables between two training steps, and writes a checkpoint from the copies while training continues.

Each process writes its parts of the variables, and reads them back. Then worker 0 completes the checkpoint.
"""

import errno
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tensorflow as tf

from core.checkpoint.files import TEMPORARY, Warn, free_name, plainly_named, remove_leftovers, seal, sync, sync_and_drop
from core.checkpoint.manifest import MANIFEST, PREFIX, SavedVariable, described_in, described_value, manifest_text
from core.checkpoint.parts import Box, InParts, key_of, merge, read_part, shape_and_slice, whole_of
from core.tensorflow_private import ResourceVariable


class Copy(tf.__internal__.tracking.Trackable):
    """A copy, in separate memory, of the part of a variable that this process writes.

    `tf.train.Checkpoint` saves the copy under the variable's own name.
    """

    def __init__(self, variable: tf.Variable):
        self.shape, self.dtype = variable.shape, variable.dtype
        self.writers = variable.writers() if isinstance(variable, InParts) else {0}
        self._held: dict[Box, ResourceVariable] = {}
        self.take(variable)

    def take(self, variable: tf.Variable) -> None:
        """Copies the variable's current value over the previous copy. Allocating new memory would be much slower."""
        whole = whole_of(self.shape)
        values = variable.slices() if isinstance(variable, InParts) else {whole: variable.read_value()}
        with tf.device("CPU:0"):
            for box, value in values.items():
                if box in self._held:
                    self._held[box][...].assign(value)
                else:  # a variable shares its initial value's memory, and `value` will change
                    self._held[box] = ResourceVariable(tf.raw_ops.DeepCopy(x=value), trainable=False)

    def slices(self) -> dict[Box, tf.Tensor]:
        return {box: held.read_value() for box, held in self._held.items()}

    def _serialize_to_tensors(self) -> dict[str, dict[str, tf.Tensor]]:
        return {"VARIABLE_VALUE": {shape_and_slice(self.shape, box): value for box, value in self.slices().items()}}


Copies = Mapping[str, Copy]  # by path


def copied(variables: Mapping[str, tf.Variable], *, worker: int, into: Copies) -> Copies:
    """Copies the variables of which process `worker` writes a part; returns `{path: copy}`.

    Worker 0 also writes all unsharded variables. Earlier copies in `into` are overwritten.
    """
    own = {path: v for path, v in variables.items() if worker == 0 or isinstance(v, InParts)}
    if own.keys() != into.keys():
        return {path: Copy(variable) for path, variable in own.items()}
    for path, variable in own.items():
        into[path].take(variable)
    return into


def writers_of(copies: Copies) -> list[int]:
    """Returns the sorted indices of the processes that write a file; 0 is always among them."""
    return sorted({0}.union(*(copy.writers for copy in copies.values())))


Hashes = Mapping[str, SavedVariable]  # by path


def made_folder(directory: Path, name: str, warn: Warn) -> Path:
    """Makes the temporary folder in which the checkpoint `name` is written, and removes leftovers of killed saves."""
    directory.mkdir(parents=True, exist_ok=True)
    remove_leftovers(directory, warn)
    temporary = free_name(directory / f"{TEMPORARY}{name}")
    temporary.mkdir()
    return temporary


def write_parts(temporary: Path, copies: Copies, worker: int) -> Hashes:
    """Writes this process's parts of all variables, reads them back, and compares them with the copies.

    Returns the `SavedVariable` entries of the variables that this process holds whole, by path.
    """
    writers = writers_of(copies)
    if worker not in writers:
        return {}
    own = PREFIX if writers == [0] else _prefix_of(worker)
    with plainly_named(temporary) as name:
        prefix = f"{name}/{own}"
        if worker == 0:
            tf.train.Checkpoint(variables=dict(copies)).write(prefix)
        else:
            write_slices(prefix, copies)
        for file in temporary.glob(f"{own}.*"):
            sync_and_drop(file)  # other machines can't do this one's
        return {
            path: found
            for path, copy in copies.items()
            for box, value in copy.slices().items()
            if (found := _read_back(prefix, path, copy, box, value)).shape == tuple(copy.shape)
        }


def put_together(temporary: Path, copies: Copies, whole: Hashes, content: Mapping[str, Any]) -> None:
    """Merges the files of all processes in `temporary` into one checkpoint, and writes its manifest."""
    writers = writers_of(copies)
    with plainly_named(temporary) as name:
        if writers != [0]:
            merge([f"{name}/{_prefix_of(worker)}" for worker in writers], f"{name}/{PREFIX}")
        hashes = {
            path: whole.get(path) or described_in(f"{name}/{PREFIX}", path, copy)
            for path, copy in sorted(copies.items())
        }
    content = {
        **content,
        "files": {file.name: seal(file) for file in sorted(temporary.iterdir())},
        "variables": {path: found._asdict() for path, found in hashes.items()},
    }
    (temporary / MANIFEST).write_text(manifest_text(content), "utf-8")
    sync(temporary / MANIFEST)
    sync(temporary)


def write_slices(prefix: str, copies: Copies) -> None:
    """Writes the slices of a process other than worker 0 into the file `prefix`."""
    slices = [
        (key_of(path), shape_and_slice(copy.shape, box), value)
        for path, copy in sorted(copies.items())
        for box, value in copy.slices().items()
    ]
    names, specs, values = zip(*slices, strict=True)
    with tf.device("CPU:0"):
        tf.raw_ops.SaveV2(prefix=prefix, tensor_names=names, shape_and_slices=specs, tensors=values)


def _read_back(prefix: str, path: str, copy: Copy, box: Box, value: tf.Tensor) -> SavedVariable:
    """Returns the manifest entry of a part; raises an `OSError` if the disk's bytes differ from `value`."""
    copied = described_value(value)
    if described_value(read_part(prefix, path, copy, box)) != copied:
        raise OSError(errno.EIO, f"`{path}` came back from the disk with other bytes than were written")
    return copied


def _prefix_of(worker: int) -> str:
    return f"{PREFIX}-{worker}"
