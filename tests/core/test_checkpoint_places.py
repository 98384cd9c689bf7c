"""Checkpoints in folders of any name."""

import os
import re

import pytest
import tensorflow as tf
from checkpoint_lab import DATA, model, newest, save, values

from core import checkpoint
from core.errors import CheckpointError


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


def test_errors_name_the_folder_as_its_owner_does(tmp_path, monkeypatch):
    directory = tmp_path / "a[1]" / "checkpoints"
    save(directory, model(1), 1)
    manifest = newest(directory)
    (manifest.path / DATA).unlink()  # another process may, once the manifest was read
    with pytest.raises(CheckpointError, match=re.escape(f"{manifest.path}/variables.data")) as caught:
        checkpoint.restore(manifest, model(2))
    assert "/proc/" not in str(caught.value)

    monkeypatch.setattr(tf.train.Checkpoint, "write", lambda _, prefix: tf.io.read_file(prefix))
    with pytest.raises(CheckpointError, match=re.escape(f"{directory}/.tmp-step-000000002/variables")) as caught:
        save(directory, model(1), 2)
    assert "/proc/" not in str(caught.value)


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
