"""Checkpoints that are whole or not there at all: save, verify, restore, fall back.

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

Nobody needs Tapeloop to read one. TensorFlow's key of a variable is its path with `.` doubled and `/` written `.S`:

    >>> reader = tf.train.load_checkpoint(manifest.path / "variables")
    >>> reader.get_tensor("variables/net.Sw/.ATTRIBUTES/VARIABLE_VALUE").tolist()
    [1.0, 2.0]

A directory has one writer at a time, and any number of readers. TensorFlow reads no path with `[`, `*`, `?` or `\\`:
`plainly_named` lends the directory another name for as long as it takes.
"""

from core.checkpoint.files import path_of, plainly_named, tidy
from core.checkpoint.manifest import Manifest, SavedVariable, Variables
from core.checkpoint.read import newest, restore
from core.checkpoint.write import Peers, save

__all__ = [
    "Manifest",
    "Peers",
    "SavedVariable",
    "Variables",
    "newest",
    "path_of",
    "plainly_named",
    "restore",
    "save",
    "tidy",
]
