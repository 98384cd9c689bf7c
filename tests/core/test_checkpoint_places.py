"""Checkpoints in folders of any name."""

import os

import pytest
import tensorflow as tf
from checkpoint_lab import model, newest, save, values

from core import checkpoint


@pytest.mark.parametrize(
    "name",
    ["a[1]", "a*", "a?", "a\\b", "[", "%s {a,b}~$\n#", os.fsdecode(b"caf\xe9"), "x" * 255],
    ids=["class", "star", "question", "backslash", "bracket", "spaces", "latin_1", "long"],
)
def test_any_folder_is_written_and_read(tmp_path, name):
    save(tmp_path / name / "checkpoints", model(1), 1)
    live, before = model(2), os.listdir("/proc/self/fd")
    checkpoint.restore(newest(tmp_path / name / "checkpoints"), live)
    assert values(live) == values(model(1))
    assert len(os.listdir("/proc/self/fd")) == len(before)


def test_a_neighbour_that_the_name_would_match_is_left_alone(tmp_path):
    """As a pattern `a[1]` is the folder `a1`."""
    save(tmp_path / "a1", model(1), 1)
    save(tmp_path / "a[1]", model(2), 1)
    live = model(3)
    checkpoint.restore(newest(tmp_path / "a[1]"), live)
    assert values(live) == values(model(2))


def test_a_relative_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("plain", "a[1]"):
        live = tf.Variable(0.0)
        checkpoint.save(path := tmp_path.__class__(name), {"x": tf.Variable(1.0)}, step=1, examples=1, config_hash="c")
        checkpoint.restore(newest(path), {"x": live})
        assert live.numpy() == 1.0
