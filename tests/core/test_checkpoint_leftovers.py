"""Old checkpoints that can't be removed are reported, and training continues."""

import os
import shutil
import subprocess

import pytest
import tensorflow as tf
from checkpoint_lab import fail, model, names, newest, save

from core.checkpoint import files
from core.telemetry import Telemetry
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
    """Makes a folder that can't be removed: for real, where this user has any means for it."""
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
    for back, path in undo:  # it may have been put aside
        now = path if path.exists() else path.with_name(f".tmp-removed-{path.name}")
        subprocess.run(back.format(now), shell=True, check=True)


def test_leftovers_that_cannot_be_removed_are_told_once_and_counted(tmp_path, immovable):
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


def test_leftovers_that_stay_are_told_and_in_no_way(tmp_path, stubborn):
    save(tmp_path, model(), 5)
    for name in (".tmp-step-000000009", ".tmp-removed-step-000000005", "step-000000005"):
        (tmp_path / name).mkdir(exist_ok=True)
        (tmp_path / name / ".nfs1").touch()
    told = []
    for _ in range(2):  # the second takes the place of the first
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
