"""What can't be removed is told, and stops nobody."""

import os
import shutil

import pytest
import tensorflow as tf
from checkpoint_lab import fail, model, names, newest, save

from core.checkpoint import files


@pytest.fixture
def stubborn(monkeypatch):
    """Folders that hold a file `.nfs1` can't be removed, as on NFS while a process has it open."""
    rmtree = shutil.rmtree

    def remove(path, *args, **options):
        if os.path.exists(os.path.join(path, ".nfs1")):
            raise OSError(39, "Directory not empty", str(path))
        rmtree(path, *args, **options)

    monkeypatch.setattr(files.shutil, "rmtree", remove)


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
