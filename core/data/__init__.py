"""Data: sources of examples, and the pipeline that lays them out for the engine.

>>> from core.data import digits, train_chunks
>>> chunks = train_chunks(digits("train"), global_batch_size=32, microbatches=1, chunk_steps=50, seed=0)
>>> chunks.element_spec["image"].shape
TensorShape([50, 1, 32, 8, 8, 1])
"""

from core.data.arrays import ArraySource, npz
from core.data.digits import digits
from core.data.idx import mnist
from core.data.pipeline import eval_chunks, position_indices, train_chunks
from core.data.replicas import per_replica
from core.data.source import Source, check_feature

__all__ = [
    "ArraySource",
    "Source",
    "check_feature",
    "digits",
    "eval_chunks",
    "mnist",
    "npz",
    "per_replica",
    "position_indices",
    "train_chunks",
]
