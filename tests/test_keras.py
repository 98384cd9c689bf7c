"""Keras is absent from the code, and not needed at run time."""

import re

import pytest
import tensorflow as tf

from tests.commands import CHECKOUT

KERAS = re.compile(
    r"(import|from)\s+(tf_)?keras|tf\.keras|tensorflow\.(python\.)?keras|tf\.(losses|metrics|optimizers|initializers)\."
)
PLACES = ("core", "models", "trainers", "tests")


def test_the_suite_runs_without_keras():
    with pytest.raises((ImportError, AttributeError)):
        _ = getattr(tf, "keras").layers  # noqa: B009


def test_no_code_names_keras():
    for place in PLACES:
        for path in (CHECKOUT / place).glob("**/*.py"):
            if path.name == "test_keras.py":
                continue
            found = [line for line in path.read_text().splitlines() if KERAS.search(line)]
            assert not found, (path, found)
