"""Data: sources of examples, and the pipeline that lays them out for the engine.

>>> from core.data import digits, train_chunks
>>> chunks = train_chunks(digits("train"), global_batch_size=32, microbatches=1, chunk_steps=50, seed=0)
>>> chunks.element_spec["image"].shape
TensorShape([50, 1, 32, 8, 8, 1])
"""

from core.data.arrays import ArraySource, npz
from core.data.augment import random_crop_and_flip
from core.data.bpe import bpe, train_bpe
from core.data.corpus import text_files
from core.data.digit_pairs import digit_pairs
from core.data.digits import digits
from core.data.idx import mnist
from core.data.image_files import unreadable_image
from core.data.images import ImageFiles, image_folder, paired_folders, unpaired_folders
from core.data.markov import markov
from core.data.pipeline import eval_chunks, position_indices, train_chunks
from core.data.replicas import PerReplica
from core.data.source import Source, check_feature
from core.data.token_files import token_file
from core.data.token_windows import TokenWindows, strange_token
from core.data.tokenizers import Tokenizer, byte_tokens
from core.data.topics import topics

__all__ = [
    "ArraySource",
    "ImageFiles",
    "PerReplica",
    "Source",
    "TokenWindows",
    "Tokenizer",
    "bpe",
    "byte_tokens",
    "check_feature",
    "digit_pairs",
    "digits",
    "eval_chunks",
    "image_folder",
    "markov",
    "mnist",
    "npz",
    "paired_folders",
    "position_indices",
    "random_crop_and_flip",
    "strange_token",
    "text_files",
    "token_file",
    "topics",
    "train_bpe",
    "train_chunks",
    "unpaired_folders",
    "unreadable_image",
]
