"""Manifests with a valid SHA-256 and impossible content are refused."""

import json
import os

import pytest
from checkpoint_lab import DATA, INDEX, model, newest, save

from core import checkpoint
from core.checkpoint.manifest import manifest_text
from core.errors import CheckpointError


def tampered(path, change):
    """Changes the manifest's content, with a matching hash."""
    content = json.loads((path / "manifest.json").read_text())
    del content["sha256"]
    change(content)
    (path / "manifest.json").write_text(manifest_text(content))


def passed_over(directory):
    """Returns the warning about the newest checkpoint, which is damaged, while the one before it is restored."""
    told = []
    assert checkpoint.newest(directory, warn=told.append).step == 1
    assert len(told) == 1
    assert len(told[0]) < 600
    return told[0]


ELSEWHERE = ["../x", "/dev/zero", "/etc/passwd", "a/b", "..", ".", "", "manifest.json", "a\0b", "a\nb"]


@pytest.mark.parametrize("name", ELSEWHERE)
def test_files_outside_the_folder_are_not_opened(tmp_path, name):
    save(tmp_path, model(), 1)
    path = save(tmp_path, model(), 2)
    tampered(path, lambda content: content["files"].update({name: content["files"][DATA]}))
    assert "a name in `files`" in passed_over(tmp_path)


VALUES = ["2", -1, True, 10**30, 1.5, float("nan"), float("inf"), None, [2], {"a": 1}, "x" * 10_000]
WHERE = {
    "step": lambda c, x: c.update(step=x),
    "examples": lambda c, x: c.update(examples=x),
    "bytes": lambda c, x: c["files"][DATA].update(bytes=x),
    "entry": lambda c, x: c["files"].update({DATA: x}),
    "files": lambda c, x: c.update(files=x),
    "shape": lambda c, x: c["variables"]["step"].update(shape=x if x != [2] else ["2"]),
    "size": lambda c, x: c["variables"]["step"].update(shape=[x]),
    "variables": lambda c, x: c.update(variables=x),
    "extra": lambda c, x: c.update(extra=x if not isinstance(x, dict) else 1),
}


@pytest.mark.parametrize("where", WHERE)
def test_wrong_kinds_of_value(tmp_path, where):
    save(tmp_path, model(), 1)
    path = save(tmp_path, model(), 2)
    good = (path / "manifest.json").read_bytes()
    for value in VALUES:
        (path / "manifest.json").write_bytes(good)
        tampered(path, lambda content, value=value: WHERE[where](content, value))
        assert "manifest.json" in passed_over(tmp_path), value
    (path / "manifest.json").write_bytes(good)
    assert newest(tmp_path).step == 2


@pytest.mark.parametrize("field", ["files", "variables", "step", "examples", "config_hash", "extra"])
def test_a_field_that_is_missing(tmp_path, field):
    save(tmp_path, model(), 1)
    tampered(save(tmp_path, model(), 2), lambda content: content.pop(field))
    assert field in passed_over(tmp_path)


@pytest.mark.parametrize("name", ["manifest.json", DATA, INDEX])
@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: os.symlink("/dev/zero", path)])
def test_pipes_folders_and_devices_in_place_of_files(tmp_path, name, make):
    save(tmp_path, model(), 1)
    path = save(tmp_path, model(), 2)
    (path / name).unlink()
    make(path / name)
    if name == DATA:  # with sizes that agree, so that it is read
        tampered(path, lambda content: content["files"][name].update(bytes=(path / name).stat().st_size))
    assert name in passed_over(tmp_path)


@pytest.mark.parametrize("text", ["[" * 200_000, '{"a":' * 200_000, "9" * 5000, '{"step": 1e999}', '"\\ud800"'])
def test_text_that_no_manifest_has(tmp_path, text):
    save(tmp_path, model(), 1)
    (save(tmp_path, model(), 2) / "manifest.json").write_text(text)
    assert "manifest.json" in passed_over(tmp_path)


def test_a_huge_manifest_is_not_read_whole(tmp_path):
    path = save(tmp_path, model(), 2)
    os.truncate(path / "manifest.json", 1 << 40)
    with pytest.raises(CheckpointError, match="size is 'more than"):
        checkpoint.newest(tmp_path, warn=lambda text: None)
