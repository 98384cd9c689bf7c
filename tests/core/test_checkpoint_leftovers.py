"""Checkpoints in folders of any name, leftovers of killed saves, and files that reach the disk."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from checkpoint_lab import DATA, INDEX, fail, model, names, newest, save, values

from core import checkpoint
from core.checkpoint import files, write
from core.checkpoint.manifest import described
from core.checkpoint.write import Copy
from core.errors import CheckpointError
from core.telemetry import Telemetry
from core.testing import on_virtual_cpus
from tests.core.telemetry.test_full_disk import Notes


@pytest.fixture
def stubborn(monkeypatch):
    """Folders that hold a file `.nfs1` can't be removed, as on NFS while a process has it open."""
    rmtree = shutil.rmtree

    def remove(path, *args, **options):
        if os.path.exists(os.path.join(path, ".nfs1")):
            raise OSError(39, "Directory not empty", str(path))
        rmtree(path, *args, **options)

    monkeypatch.setattr(files.shutil, "rmtree", remove)


@pytest.fixture
def immovable(request):
    """Makes a folder that can't be removed: for real, if this user has any means for it."""
    undo = []

    def make(path):
        (path / "mount").mkdir()
        means = [("chattr +i {}", "chattr -i {}"), ("mount --bind {}/mount {}/mount", "umount {}/mount")]
        if os.geteuid():
            means = [("chmod 500 {}", "chmod 700 {}")]
        for do, back in means:
            if not subprocess.run(do.format(*[path] * 2), shell=True, capture_output=True, check=False).returncode:
                undo.append((back, path))
                return
        request.getfixturevalue("stubborn")
        (path / ".nfs1").touch()

    yield make
    for back, path in undo:  # it may have been moved aside
        now = path if path.exists() else path.with_name(f".tmp-removed-{path.name}")
        subprocess.run(back.format(now), shell=True, check=True)


def test_leftovers_that_cannot_be_removed_are_reported_once_and_counted(tmp_path, immovable):
    for step in (1, 2, 3):
        save(tmp_path, model(), step, keep=9)
    immovable(tmp_path / "step-000000001")
    for _ in range(2):  # starts
        screen = Notes()
        warn = Telemetry([screen]).warn_once
        for step in (4, 5, 6, 7):
            save(tmp_path, model(), step, keep=2, warn=warn)
        assert len(screen.notes) == 1
        assert "step-000000001` could not be removed" in screen.notes[0]
        there = names(tmp_path)
        assert [name for name in there if not name.startswith(".tmp-")][-2:] == ["step-000000006", "step-000000007"]
        assert len(there) == 3
        assert newest(tmp_path).step == 7


def test_one_that_was_replaced_and_stays_counts_for_nothing(tmp_path):
    for step in (1, 2, 3):
        save(tmp_path, model(), step, keep=9)
    shutil.copytree(tmp_path / "step-000000003", tmp_path / "step-000000003.replaced")
    files.remove_old(tmp_path, 3, {2, 3}, fail)
    assert names(tmp_path) == ["step-000000002", "step-000000003", "step-000000003.replaced"]


def test_leftovers_that_stay_are_reported_and_harmless(tmp_path, stubborn):
    save(tmp_path, model(), 5)
    for name in (".tmp-step-000000009", ".tmp-removed-step-000000005", "step-000000005"):
        (tmp_path / name).mkdir(exist_ok=True)
        (tmp_path / name / ".nfs1").touch()
    told = []
    for _ in range(2):  # the second replaces the first
        save(tmp_path, model(), 9, keep=1, warn=told.append)
        assert newest(tmp_path).step == 9
    assert all("Directory not empty" in text for text in told)
    assert [name for name in names(tmp_path) if not name.startswith(".tmp-")] == ["step-000000009"]
    assert {".tmp-step-000000009", ".tmp-removed-step-000000005"} < {*names(tmp_path)}


def test_plain_files_and_links_of_such_names_go(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "kept").touch()
    (tmp_path / ".tmp-step-000000009").write_text("a file")
    (tmp_path / ".tmp-link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "step-000000003").write_text("a file")
    (tmp_path / "step-000000009").write_text("a file, where the checkpoint is to be")
    save(tmp_path, model(), 9, keep=1, warn=fail)
    assert names(tmp_path) == ["elsewhere", "step-000000009"]
    assert newest(tmp_path).step == 9
    assert (tmp_path / "elsewhere" / "kept").exists()


def test_an_unreadable_leftover(tmp_path):
    leftover = tmp_path / ".tmp-step-000000009"
    leftover.mkdir()
    (leftover / "half").touch()
    leftover.chmod(0)
    told = []
    save(tmp_path, {"w": tf.Variable(1.0)}, 9, warn=told.append)
    assert newest(tmp_path).step == 9
    assert leftover.exists() == bool(told)
    assert len(told) == (os.geteuid() != 0)  # root may remove anything
    if told:
        leftover.chmod(0o700)


@pytest.mark.parametrize(
    "error",
    [
        tf.errors.ResourceExhaustedError(None, None, "OOM when allocating tensor with shape[9] and type float"),
        tf.errors.UnavailableError(None, None, "Socket closed"),
    ],
)
def test_want_of_memory_or_of_a_server_while_saving_is_no_fault_of_the_disk(error, tmp_path, monkeypatch):
    def write(*_):
        raise error

    monkeypatch.setattr(tf.train.Checkpoint, "write", write)
    with pytest.raises(type(error)):
        save(tmp_path, model(), 1)
    assert names(tmp_path) == []


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
    """As a pattern, `a[1]` is the folder `a1`."""
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


@pytest.fixture
def done(monkeypatch):
    """Lists the operations on files in order."""
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
    """Otherwise the next step would have to copy, on the loop's time."""
    variable = tf.Variable(tf.random.normal([300, 40], seed=1))
    copy = Copy(variable)
    for _ in range(2):
        (held,) = copy.slices().values()
        assert not np.shares_memory(memory(held), memory(variable.read_value()))
        copy.take(variable)
    assert np.shares_memory(memory(variable.read_value()), memory(variable.read_value()))  # or it shows nothing


def test_a_copy_is_one_in_any_scope(tmp_path):
    """A custom loop may save within its strategy's scope, where each variable would be one per replica."""
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
