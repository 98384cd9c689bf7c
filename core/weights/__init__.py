"""Starts a run with given weights: from another run's checkpoint, or from a weight file.

>>> import tempfile
>>> import tensorflow as tf
>>> from core import checkpoint as checkpoints
>>> from core.weights import begin_with, checkpoint
>>> old, new, folder = tf.Module(), tf.Module(), tempfile.mkdtemp()
>>> old.w, new.weight, new.head = tf.Variable([1.0, 2.0]), tf.Variable([0.0, 0.0]), tf.Variable(3.0)
>>> from pathlib import Path
>>> _ = checkpoints.save(Path(folder), {"task/w": old.w}, step=9, examples=9, config_hash="c0ffee")
>>> begun = begin_with(checkpoint(folder, take=["weight"], rename={"w": "weight"}), new)
>>> new.weight.numpy().tolist(), begun.record["step"]
([1.0, 2.0], 9)
"""

from core.weights.begin import Begun, begin_with
from core.weights.fit import check_types
from core.weights.lora import Lora, merge_all
from core.weights.of_checkpoint import AVERAGES, checkpoint
from core.weights.of_file import npz_weights, open_safetensors, safetensors_weights
from core.weights.shards import open_shards
from core.weights.torch_files import open_state_dict
from core.weights.weights import ArrayType, StartFrom, Weights

__all__ = [
    "AVERAGES",
    "ArrayType",
    "Begun",
    "Lora",
    "StartFrom",
    "Weights",
    "begin_with",
    "check_types",
    "checkpoint",
    "merge_all",
    "npz_weights",
    "open_safetensors",
    "open_shards",
    "open_state_dict",
    "safetensors_weights",
]
