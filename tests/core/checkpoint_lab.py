"""Helpers of the checkpoint tests: variables to save, and ways to look at a saved checkpoint."""

from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from core import checkpoint

DATA, INDEX = "variables.data-00000-of-00001", "variables.index"


def model(seed: int = 0) -> dict[str, tf.Variable]:
    x = np.random.default_rng(seed).normal(size=[8, 3]).astype(np.float32)
    return {
        "net/layers/0/w": tf.Variable(x),
        "net/layers/0/b": tf.Variable(x[0]),
        "step": tf.Variable(2**40 + seed, dtype=tf.int64),
    }


def values(variables: dict[str, tf.Variable]) -> dict[str, bytes]:
    return {path: np.asarray(v.numpy()).tobytes() for path, v in variables.items()}


def save(directory: Path, variables: dict[str, tf.Variable], step: int, **options: object) -> Path:
    return checkpoint.save(
        directory, variables, **{"step": step, "examples": 32 * step, "config_hash": "c0", **options}
    )


def fail(text: str) -> None:
    pytest.fail(f"unexpected warning: {text}")


def newest(directory: Path) -> checkpoint.Manifest:
    manifest = checkpoint.newest(directory, warn=fail)
    assert manifest is not None
    return manifest


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def flip_bit(file: Path, place: float = 0.5) -> None:
    content = bytearray(file.read_bytes())
    content[int(place * (len(content) - 1))] ^= 1
    file.write_bytes(content)
