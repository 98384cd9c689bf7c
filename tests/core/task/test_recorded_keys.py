"""The batch of an inspected phase records which keys are read, in each way of reading."""

import pytest
import tensorflow as tf

from core.errors import ConfigurationError
from core.task.inputs import Inputs


@pytest.mark.parametrize(
    ("reads", "expected"),
    [
        (lambda batch: batch["x"], {"x"}),
        (lambda batch: batch.get("x"), {"x"}),
        (lambda batch: batch.get("z"), {"z"}),
        (list, {"x", "y"}),
        (lambda batch: batch.items(), {"x", "y"}),
        (lambda batch: batch.values(), {"x", "y"}),
        (lambda batch: {**batch}, {"x", "y"}),
        (len, set()),
    ],
    ids=["item", "get", "get a missing one", "iterate", "items", "values", "unpack", "length"],
)
def test_keys_that_are_read_are_recorded(reads, expected):
    batch = Inputs({"x": tf.ones([2]), "y": tf.zeros([2])}, "net", {}, set())
    reads(batch)
    assert batch.read == expected


@pytest.mark.parametrize(
    ("elsewhere", "says"),
    [({}, "no earlier phase makes it"), ({"lable": "a later phase makes it"}, "but a later phase makes it")],
)
def test_missing_key_is_refused_with_those_that_there_are(elsewhere, says):
    batch = Inputs({"image": tf.ones([2]), "label": tf.zeros([2])}, "net", elsewhere, set())
    with pytest.raises(ConfigurationError, match=rf"reads `lable`, .*{says}.*`image`.*`label`"):
        batch["lable"]
