"""A checkpoint is copied, written to disk and read back before it counts."""

import os
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from core import checkpoint
from core.checkpoint import write
from core.checkpoint.copies import Copy
from core.checkpoint.manifest import described
from core.testing import on_virtual_cpus
from tests.core.checkpoint_lab import DATA, INDEX, fail, model, newest, save


@pytest.fixture
def done(monkeypatch):
    """Lists in their order what is done to which file."""
    listed, read_part = [], write.read_part

    def noted(what, real, name):
        def call(*arguments):
            listed.append((what, name(arguments)))
            return real(*arguments)

        return call

    def opened(arguments):
        return Path(os.readlink(f"/proc/self/fd/{arguments[0]}")).name

    monkeypatch.setattr(os, "fsync", noted("on the disk", os.fsync, opened))
    monkeypatch.setattr(os, "posix_fadvise", noted("forgotten by memory", os.posix_fadvise, opened))
    monkeypatch.setattr(write, "read_part", noted("read back", read_part, lambda arguments: arguments[1]))
    monkeypatch.setattr(Path, "rename", noted("in place", Path.rename, lambda arguments: arguments[1].name))
    return listed


def test_all_is_on_the_disk_and_was_read_from_there_before_it_is_in_place(done, tmp_path):
    variables = model()
    place = save(tmp_path, variables, 1).name
    moved = done.index(("in place", place))
    before, after = done[:moved], done[moved + 1 :]
    first_read = min(before.index(("read back", path)) for path in variables)
    for file in (DATA, INDEX):
        assert before.index(("on the disk", file)) < before.index(("forgotten by memory", file)) < first_read
    assert {("on the disk", name) for name in ("manifest.json", f".tmp-{place}")} <= set(before)
    assert ("on the disk", tmp_path.name) in after


def test_a_copy_has_memory_of_its_own_from_the_first_on():
    """The next step would have to make it otherwise, on the loop's time."""
    variable = tf.Variable(tf.random.normal([300, 40], seed=1))
    copy = Copy(variable)
    for _ in range(2):
        (held,) = copy.slices().values()
        assert not np.shares_memory(memory(held), memory(variable.read_value()))
        copy.take(variable)
    assert np.shares_memory(memory(variable.read_value()), memory(variable.read_value()))  # or it shows nothing


def test_a_copy_is_one_in_any_scope(tmp_path):
    """A loop of one's own may save within the scope of its strategy, where each variable would be one a replica."""
    strategy = on_virtual_cpus(2)
    with strategy.scope():
        variables = {"w": tf.Variable([1.0, 2.0])}
        saves = checkpoint.Saves(tmp_path, warn=fail)
        for step in (1, 2):
            saves.begin(variables, step=step, examples=1, config_hash="")
            saves.settle()
            assert newest(tmp_path).variables == {"w": described(variables["w"])}
            variables["w"].assign([3.0, 4.0])


def memory(tensor):
    return np.asarray(memoryview(tensor))
