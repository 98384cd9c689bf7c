"""Saves, verifies and restores checkpoints. Each is either complete or absent, even after a kill.

A checkpoint is a directory `step-000001000/` with two things in it: a TensorFlow checkpoint under the prefix
`variables`, and `manifest.json` with the step, the data position and the SHA-256 of every file and every variable.

    >>> import tempfile
    >>> from pathlib import Path
    >>> import tensorflow as tf
    >>> w, directory = tf.Variable([1.0, 2.0]), Path(tempfile.mkdtemp())
    >>> save(directory, {"net/w": w}, step=1000, examples=32000, config_hash="c0ffee").name
    'step-000001000'
    >>> _ = w.assign([0.0, 0.0])
    >>> manifest = newest(directory, warn=print)
    >>> restore(manifest, {"net/w": w})
    >>> manifest.step, manifest.examples, w.numpy().tolist()
    (1000, 32000, [1.0, 2.0])

Reading a checkpoint doesn't need Tapeloop. To get TensorFlow's key from a variable's path, double each `.` and write
`.S` for each `/`:

    >>> reader = tf.train.load_checkpoint(manifest.path / "variables")
    >>> reader.get_tensor("variables/net.Sw/.ATTRIBUTES/VARIABLE_VALUE").tolist()
    [1.0, 2.0]

A directory has one writer at a time, and any number of readers. TensorFlow can't read paths with `[`, `*`, `?` or `\\`:
`plainly_named` gives such a directory a temporary second name.
"""

from core.checkpoint.files import checkpoints_in, path_of, plainly_named
from core.checkpoint.keep import Best, Better, Keep, kept_of
from core.checkpoint.manifest import DamagedError, Manifest, SavedVariable, Variables, verified
from core.checkpoint.peers import Peers
from core.checkpoint.read import newest, of_step, restore, steps_in
from core.checkpoint.saves import Saves, save

__all__ = [
    "Best",
    "Better",
    "DamagedError",
    "Keep",
    "Manifest",
    "Peers",
    "SavedVariable",
    "Saves",
    "Variables",
    "checkpoints_in",
    "kept_of",
    "newest",
    "of_step",
    "path_of",
    "plainly_named",
    "restore",
    "save",
    "steps_in",
    "verified",
]
