"""Storage that fails in each way, against a real server: nothing is lost, and what is there is whole."""

import asyncio
import contextlib
import functools
import shutil
import time
import types

import pytest
import tensorflow as tf
from botocore.loaders import JSONFileLoader

from core import checkpoint
from core.errors import CheckpointError, ConfigurationError, DataError
from core.storage import Bucket, StorageError, bucket, parse_address
from trainers.storage import mirror, owner
from trainers.storage.__main__ import main
from trainers.storage.download import download
from trainers.storage.mirror import Mirror, stored
from trainers.storage.owner import read_owner
from trainers.workdir import Workdir

pytestmark = pytest.mark.waits

# Each bucket's client reads botocore's descriptions of a service, a third of the time of these tests.
description = functools.cache(JSONFileLoader().load_file)
ADDRESS = parse_address("s3://bucket/runs/mine", "--workdir")


@pytest.fixture(autouse=True)
def _hasty(monkeypatch, tmp_path, server):
    """Shortens the waits. The test's folder is the working directory."""
    for module, name, value in [
        (bucket, "TRIES", 1),
        (mirror, "ENDING", 1.0),
        (mirror, "LOOK_SECONDS", 0.1),
        (mirror, "FILES_SECONDS", 1.0),
        (mirror, "LONGEST", 0.3),
        (owner, "LOOK_SECONDS", 0.1),
        (owner, "BEAT_SECONDS", 0.3),
        (JSONFileLoader, "load_file", lambda self, path: description(path)),
    ]:
        monkeypatch.setattr(module, name, value)
    if server.address.startswith("gs://"):
        monkeypatch.setattr("gcsfs.retry.asyncio", types.SimpleNamespace(sleep=lambda seconds: asyncio.sleep(0)))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def begin(server):
    """Returns a function that uploads from a folder, in a thread that ends with the test."""
    begun = []

    def begin(folder):
        workdir = Workdir(folder)
        workdir.create()
        begun.append((workdir, Mirror(Bucket(parse_address(server.address, "--workdir")), workdir)))
        return begun[-1]

    yield begin
    for _, following in begun:
        with contextlib.suppress(CheckpointError):
            following.end()


def save(folder, *steps):
    """Saves checkpoints and metric lines, as training does; keeps the last two checkpoints."""
    saves = checkpoint.Saves(folder / "checkpoints", keep=checkpoint.Keep(2))
    for step in steps:
        with open(folder / "metrics.jsonl", "a") as lines:
            lines.write(f'{{"step": {step}}}\n')
        saves.begin({"w": tf.Variable([float(step)] * 1000)}, step=step, examples=step, config_hash="c0ffee")
        saves.settle()


def fetched(folder, address=ADDRESS):
    """Returns the files that a fresh machine gets, with their contents; and the step that it resumes from."""
    shutil.rmtree(folder, ignore_errors=True)
    place = Bucket(address)
    download(place, folder, read_owner(place), print)
    newest = checkpoint.newest(folder / "checkpoints", warn=print)
    return contents(folder), newest.step


def contents(folder):
    files = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
    return {name: path.read_bytes() for name, path in files.items() if not name.startswith(".")}


def until(condition):
    for _ in range(600):
        if condition():
            return
        time.sleep(0.05)
    raise AssertionError("it didn't happen")


def is_file_of_run(method, path):
    return method in ("PUT", "POST") and not path.endswith("owner.json")


def of_google(*values):
    """Returns a case with an emulator of Google's storage, whose client takes long to import."""
    return pytest.param("gs", *values, marks=pytest.mark.long)


@pytest.mark.parametrize(
    ("server", "fault", "says"),
    [
        ("s3", "busy", "Reduce your request rate"),
        ("s3", "full", "The storage has reached its maximum"),
        ("s3", "expired", "The provided token has expired"),
        ("s3", "cut", ""),
        ("s3", "silent", "imeout"),
        of_google("busy", "We encountered an internal error"),
        of_google("expired", "Invalid Credentials"),
        of_google("cut", ""),
        of_google("silent", "imeout"),
    ],
    indirect=["server"],
)
def test_a_run_loses_nothing_when_uploads_fail(fault, says, storage, begin, monkeypatch, tmp_path):
    if fault == "silent":
        monkeypatch.setattr(bucket, "READ_SECONDS", 1)
    workdir, following = begin(tmp_path / "run")
    save(workdir.path, 100)
    until(lambda: "checkpoints/step-000000100/manifest.json" in storage.names("bucket/runs/mine"))
    sent = []

    def fails(method, path):
        """Lets the first file of the second checkpoint through."""
        if not is_file_of_run(method, path) or (not sent and "step-000000200" in path):
            sent.append(path) if "step-000000200" in path else None
            return None
        return fault

    storage.fault = fails
    save(workdir.path, 200)
    until(lambda: following.trouble and says in following.trouble)
    address = parse_address(storage.address, "--workdir")
    assert fetched(tmp_path / "during", address)[1] == 100
    storage.fault = lambda method, path: None
    save(workdir.path, 300)
    following.end()
    found, step = fetched(tmp_path / "after", address)
    assert step == 300
    assert found == contents(workdir.path)  # without step 100, which retention has removed
    assert {name.partition("/step-")[2][:9] for name in found if "step-" in name} == {"000000200", "000000300"}


@pytest.mark.long
def test_a_download_that_breaks_off_leaves_nothing_behind(storage, begin, tmp_path):
    workdir, following = begin(tmp_path / "run")
    save(workdir.path, 100)
    following.end()
    storage.fault = lambda method, path: "half" if "variables.data" in path else None
    with pytest.raises(StorageError):
        fetched(tmp_path / "other")
    assert contents(tmp_path / "other") == {}
    storage.fault = lambda method, path: None
    assert fetched(tmp_path / "other") == (contents(workdir.path), 100)


def test_a_file_that_grows_meanwhile_is_downloaded_anew(storage, begin, tmp_path):
    workdir, following = begin(tmp_path / "run")
    save(workdir.path, 100)
    following.end()
    more = [b"2 lines\n" * 2, b"3 lines\n" * 3]

    def grows(method, path):
        if (method, path) == ("GET", "/bucket/runs/mine/metrics.jsonl") and more:
            Bucket(ADDRESS).write("metrics.jsonl", more.pop(0))

    storage.fault = grows
    assert fetched(tmp_path / "other")[0]["metrics.jsonl"] == b"3 lines\n" * 3


def test_the_end_names_what_is_missing_and_the_command_that_uploads_it(storage, begin, capsys):
    workdir, following = begin(ADDRESS.folder)
    storage.fault = lambda method, path: "busy" if is_file_of_run(method, path) else None
    save(workdir.path, 100)
    with pytest.raises(CheckpointError) as error:
        following.end()
    says = "`s3://bucket/runs/mine` lacks `step-000000100`, `metrics.jsonl`: "
    assert str(error.value).startswith(says)
    assert "whole in `runs/s3/bucket/runs/mine`. `python -m trainers.storage s3://bucket/runs/mine`" in str(error.value)
    workdir.release()
    storage.fault = lambda method, path: None
    assert main(["s3://bucket/runs/mine"]) == 0
    assert "`s3://bucket/runs/mine` has all of `runs/s3/bucket/runs/mine`" in capsys.readouterr().out
    assert fetched(ADDRESS.folder.parent / "other") == (contents(workdir.path), 100)


def test_a_run_that_is_not_there_is_no_download(storage, capsys):
    assert main(["s3://bucket/none", "--download"]) == 4
    assert "`s3://bucket/none` holds no run: check the address" in capsys.readouterr().err
    assert not parse_address("s3://bucket/none", "address").folder.exists()


def test_one_machine_at_a_time_writes_to_an_address(storage, begin, monkeypatch, tmp_path):
    first, following = begin(tmp_path / "first")
    save(first.path, 100)
    until(lambda: "checkpoints/step-000000100/manifest.json" in storage.names("bucket/runs/mine"))
    with pytest.raises(ConfigurationError, match="another run is writing to `s3://bucket/runs/mine`: a run on `"):
        begin(tmp_path / "second")
    monkeypatch.setattr(owner, "SILENT_SECONDS", 0.5)
    following._ownership._ends.set()  # its beats stop, as on a machine that is suspended
    _, taker = begin(tmp_path / "third")
    save(first.path, 200)
    until(lambda: following.trouble)
    assert "has taken the address over" in following.trouble
    with pytest.raises(CheckpointError, match=r"lacks `step-000000200`.*has taken the address over"):
        following.end()
    taker.end()
    assert fetched(tmp_path / "fourth")[1] == 100
    first.release()
    with pytest.raises(ConfigurationError, match="is at step-000000200, but another machine has written there since"):
        begin(first.path)


@pytest.mark.parametrize(
    ("server", "fault", "address", "kind", "says"),
    [
        ("s3", "unknown", "s3://bucket/run", ConfigurationError, "can't be used: No such key is known"),
        ("s3", "expired", "s3://bucket/run", ConfigurationError, "can't be used: The provided token has expired"),
        ("s3", None, "s3://missing/run", ConfigurationError, "can't be used: The specified bucket does not exist"),
        (
            "s3",
            "silent",
            "s3://bucket/run",
            CheckpointError,
            "can't be reached, so nobody knows whether it holds a run: ",
        ),
        (
            "s3",
            "busy",
            "s3://bucket/run",
            CheckpointError,
            "can't be reached, so nobody knows whether it holds a run: ",
        ),
        of_google("unknown", "gs://bucket/run", ConfigurationError, "can't be used: Forbidden: .*`gcloud auth appl"),
        of_google("expired", "gs://bucket/run", ConfigurationError, "can't be used: Invalid Credentials"),
        of_google(None, "gs://missing/run", ConfigurationError, "can't be used: there is no such bucket or object"),
        of_google("silent", "gs://bucket/run", CheckpointError, "can't be reached"),
    ],
    indirect=["server"],
)
def test_storage_that_fails_at_the_start_is_refused(fault, address, kind, says, storage, monkeypatch, tmp_path):
    if fault == "silent":
        monkeypatch.setattr(bucket, "READ_SECONDS", 1)
    storage.fault = lambda method, path: fault
    with (
        pytest.raises(kind, match=says),
        stored(parse_address(address, "--workdir"), Workdir(tmp_path / "run"), writes=kind is CheckpointError),
    ):
        raise AssertionError("the run began")


def test_an_object_that_would_leave_the_folder_is_refused(storage, begin, tmp_path):
    _, following = begin(tmp_path / "run")
    following.end()
    Bucket(ADDRESS).write(f"{tmp_path}/evil", b"evil")  # an absolute path
    with pytest.raises(DataError, match=r"'s3://bucket/runs/mine//.*evil' can't be copied to a file"):
        fetched(tmp_path / "other")
    assert not (tmp_path / "evil").exists()


def test_a_damaged_checkpoint_is_skipped_with_a_warning(storage, begin, tmp_path, capsys):
    workdir, following = begin(tmp_path / "run")
    save(workdir.path, 100, 200)
    following.end()
    place = Bucket(ADDRESS)
    for step, usable in ((200, True), (100, False)):
        name = f"checkpoints/step-{step:09d}/variables.data-00000-of-00001"
        place.write(name, place.read(name).replace(b"\0", b"\1"))
        if usable:
            assert fetched(tmp_path / "other")[1] == 100
            assert (
                "Warning: checkpoint `step-000000200` at `s3://bucket/runs/mine` is damaged" in capsys.readouterr().out
            )
        else:
            with pytest.raises(CheckpointError, match="None of the checkpoints at `s3://bucket/runs/mine` can be used"):
                fetched(tmp_path / "other")
