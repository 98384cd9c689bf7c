"""Data: sources of examples, and the pipeline that makes batches of them.

>>> from core.data import digits, train_chunks
>>> chunks = train_chunks(digits("train"), global_batch_size=32, microbatches=1, chunk_steps=50, seed=0)
>>> chunks.element_spec["image"].shape
TensorShape([50, 1, 32, 8, 8, 1])
"""

from core.data.array_record import array_record
from core.data.arrays import ArraySource, npz
from core.data.augment import random_affine, random_crop, random_crop_and_flip, random_erasing, random_flip
from core.data.bpe import bpe, train_bpe
from core.data.cifar import cifar10
from core.data.colours import colour_jitter
from core.data.continued import continued
from core.data.corpus import text_files
from core.data.csv_files import csv
from core.data.digit_pairs import digit_pairs
from core.data.digits import digits
from core.data.files import bad_example
from core.data.hugging_face import hugging_face
from core.data.idx import mnist
from core.data.image_files import unreadable_image
from core.data.images import ImageFiles, image_folder, paired_folders, unpaired_folders
from core.data.labelled_images import imagenet, labelled_folders
from core.data.map_style import MapStyle
from core.data.markov import markov
from core.data.mixing import cutmix, mixup
from core.data.mixture import Mixture, mixture
from core.data.number_words import number_words
from core.data.packed import Packed, packed
from core.data.parquet_files import parquet
from core.data.pipeline import eval_chunks, position_indices, train_chunks
from core.data.rand_augment import rand_augment
from core.data.reader import Reader, Reading, SourceReader
from core.data.reordered import balanced, weighted
from core.data.replicas import PerReplica
from core.data.source import Examples, Kept, Source, check_examples, check_feature
from core.data.stream import Stream
from core.data.stream_reader import StreamReader
from core.data.tfds import tfds
from core.data.tfrecord import tfrecord
from core.data.token_files import token_file
from core.data.token_windows import TokenWindows
from core.data.tokenizers import Tokenizer, byte_tokens
from core.data.topics import topics
from core.data.webdataset import webdataset

__all__ = [
    "ArraySource",
    "Examples",
    "ImageFiles",
    "Kept",
    "MapStyle",
    "Mixture",
    "Packed",
    "PerReplica",
    "Reader",
    "Reading",
    "Source",
    "SourceReader",
    "Stream",
    "StreamReader",
    "TokenWindows",
    "Tokenizer",
    "array_record",
    "bad_example",
    "balanced",
    "bpe",
    "byte_tokens",
    "check_examples",
    "check_feature",
    "cifar10",
    "colour_jitter",
    "continued",
    "csv",
    "cutmix",
    "digit_pairs",
    "digits",
    "eval_chunks",
    "hugging_face",
    "image_folder",
    "imagenet",
    "labelled_folders",
    "markov",
    "mixture",
    "mixup",
    "mnist",
    "npz",
    "number_words",
    "packed",
    "paired_folders",
    "parquet",
    "position_indices",
    "rand_augment",
    "random_affine",
    "random_crop",
    "random_crop_and_flip",
    "random_erasing",
    "random_flip",
    "text_files",
    "tfds",
    "tfrecord",
    "token_file",
    "topics",
    "train_bpe",
    "train_chunks",
    "unpaired_folders",
    "unreadable_image",
    "webdataset",
    "weighted",
]
