"""Capsules (failure snapshots) must be complete, verified, and of one run; otherwise replay raises an error."""

import dataclasses
import json
import re
import shutil

import pytest
from capsule_lab import SOME, end_badly, given_in, replayed, write

from core.errors import CheckpointError, ConfigurationError
from tests.commands import CONFIGS, passed, refused
from trainers.main import parse
from trainers.replay.capsule.batch import packed
from trainers.replay.capsule.folder import _of_content, read_capsule, write_capsule

INDEX = "capsule.json"


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    """A folder with a run that ended badly at one of the steps 10 to 14, and its capsule."""
    folder = tmp_path_factory.mktemp("ended")
    return folder, end_badly(folder, "--gin_param=Mine.kind = 'log'")


def test_a_run_without_a_fault_leaves_none(tmp_path):
    passed(*write(tmp_path), "--gin_param=Trainer.steps = 15", cwd=tmp_path)
    assert not (tmp_path / "run" / "capsules").exists()


@pytest.mark.long
def test_replay_writes_nothing_and_needs_no_checkpoint_of_the_run(ended):
    folder, capsule = ended
    moved = folder / "run" / "moved"
    shutil.copytree(folder / capsule, moved)
    (folder / "run" / "checkpoints").rename(folder / "away")
    before = {path: path.stat().st_mtime_ns for path in folder.glob("run/**/*")}
    try:
        assert replayed(folder, moved)["operation"] == ["Log"]
        assert {path: path.stat().st_mtime_ns for path in folder.glob("run/**/*")} == before
    finally:
        (folder / "away").rename(folder / "run" / "checkpoints")
    assert not (folder / "runs").exists()


def test_capsule_holds_the_run_s_own_checkpoint_which_takes_no_room(ended):
    folder, capsule = ended
    kept = folder / capsule / "checkpoints"
    (checkpoint,) = kept.iterdir()
    for path in checkpoint.iterdir():
        assert path.samefile(folder / "run" / "checkpoints" / checkpoint.name / path.name)


@pytest.mark.long
def test_replay_before_the_first_checkpoint_goes_back_to_the_beginning(tmp_path):
    capsule = end_badly(tmp_path, "--gin_param=Mine.kind = 'log'", "--gin_param=Trainer.checkpoint_every = 40")
    assert not (tmp_path / capsule / "checkpoints").exists()
    found = replayed(tmp_path, capsule)
    assert any("replayed from the beginning" in text for text in found[""])
    assert found["operation"] == ["Log"]


@pytest.mark.long
def test_step_that_is_mended_is_finite_and_ends_with_0(ended, tmp_path):
    folder, capsule = ended
    shutil.copytree(folder / capsule, tmp_path / "capsule")
    write(tmp_path)
    task = (tmp_path / "mine.py").read_text()
    (tmp_path / "mine.py").write_text(task.replace("tf.math.log(x)", "tf.math.log(tf.maximum(x, 1e-6))"))
    found = replayed(tmp_path, "capsule", exit_code=0)
    assert any("is finite when run eagerly" in text for text in found[""])


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


DAMAGE = {
    "batch": (lambda capsule: flip(capsule / "batch.npz"), "`batch.npz` is not as it was written"),
    "no batch": (lambda capsule: (capsule / "batch.npz").unlink(), "`batch.npz` can't be read"),
    "configuration": (lambda capsule: flip(capsule / "config" / "given.gin"), "`config/given.gin` is not as it was"),
    "index": (lambda capsule: flip(capsule / INDEX), INDEX),
    "not JSON": (lambda capsule: (capsule / INDEX).write_text("{"), f"`{INDEX}` isn't a valid capsule index"),
    "a list": (lambda capsule: (capsule / INDEX).write_text("[1]"), f"`{INDEX}` isn't a valid capsule index"),
    "another step": (lambda capsule: changed(capsule, '"step": 3', '"step": 4'), f"`{INDEX}` is not as it was written"),
}


def changed(capsule, old, new):
    text = (capsule / INDEX).read_text()
    assert old in text
    (capsule / INDEX).write_text(text.replace(old, new))


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_one_is_refused(name, tmp_path):
    capsule = write_capsule(tmp_path, SOME, packed({"x": [1.0]}), given_in(tmp_path), None)
    assert read_capsule(capsule) == SOME
    damage, says = DAMAGE[name]
    damage(capsule)
    with pytest.raises(CheckpointError) as error:
        read_capsule(capsule)
    assert f"the capsule `{capsule}` is damaged" in str(error.value)
    assert says in str(error.value)


def test_capsule_of_another_version_is_refused(tmp_path):
    some = dataclasses.replace(SOME, environment={"tapeloop": "0.1"})
    capsule = write_capsule(tmp_path, some, b"", given_in(tmp_path), None)
    content = json.loads((capsule / INDEX).read_text())
    del content["sha256"]
    content["format"] = 2
    (capsule / INDEX).write_text(json.dumps({**content, "sha256": _of_content(content)}))
    with pytest.raises(CheckpointError, match=r"has format 2, and this Tapeloop reads format 1: .*\(0\.1\)"):
        read_capsule(capsule)


@pytest.mark.long
@pytest.mark.parametrize(
    ("file", "says"),
    [
        ("batch.npz", ["the capsule `capsule` is damaged", "`batch.npz` is not as it was written"]),
        ("checkpoints/*/variables.data*", ["capsule/checkpoints` can be used"]),
    ],
)
def test_replay_of_a_damaged_capsule_ends_with_5(file, says, ended, tmp_path):
    folder, capsule = ended
    shutil.copytree(folder / capsule, tmp_path / "capsule")
    write(tmp_path)
    flip(next((tmp_path / "capsule").glob(file)))
    refused("--mode=replay", "--capsule=capsule", cwd=tmp_path, exit_code=5, says=says)


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--mode=replay"], "`--capsule` is missing"),
        (["--mode=replay", "--capsule=.", "--workdir=x"], "`--workdir` has no effect with `--mode=replay`"),
        (["--mode=replay", "--capsule=.", "--eager"], "`--eager` has no effect with `--mode=replay`"),
        (["--gin_file=mine.gin", "--capsule=."], "`--capsule` has no effect with `--mode=train`"),
    ],
)
def test_flags_that_do_not_go_with_a_capsule_are_refused(flags, says):
    with pytest.raises(ConfigurationError, match=re.escape(says)):
        parse(flags)


def test_folders_that_are_no_capsules_are_refused(tmp_path):
    for path, says in ((tmp_path / "nowhere", "no folder"), (tmp_path, "is no capsule")):
        with pytest.raises(ConfigurationError) as error:
            read_capsule(path)
        for text in (f"`--capsule` is '{path}'", says, "folder `capsules`"):
            assert text in str(error.value)
    says = ["`--capsule` is '.'", "is no capsule", "folder `capsules`"]
    refused("--mode=replay", "--capsule=.", cwd=tmp_path, exit_code=2, says=says)


@pytest.mark.long
def test_another_configuration_is_refused_and_another_device_is_not(ended):
    folder, capsule = ended
    flags = ["--mode=replay", f"--capsule={capsule}"]
    says = [
        "belongs to a run with another configuration",
        "- Trainer.global_batch_size = 4\n+ Trainer.global_batch_size = 2",
    ]
    refused(*flags, "--gin_param=Trainer.global_batch_size = 2", cwd=folder, exit_code=2, says=says)
    one = f"--gin_file={CONFIGS / 'runtime/one_device.gin'}"
    assert replayed(folder, capsule, one)["operation"] == ["Log"]


def test_replay_by_parameter_servers_is_refused_by_name(ended):
    folder, capsule = ended
    served = f"--gin_file={CONFIGS / 'runtime/parameter_server.gin'}"
    refused("--mode=replay", f"--capsule={capsule}", served, cwd=folder, exit_code=2, says=["parameter_server"])


@pytest.mark.long
def test_replay_by_local_steps_is_refused_by_name(ended):
    folder, capsule = ended
    local = ["--gin_param=Trainer.local_steps = 5", f"--gin_file={CONFIGS / 'runtime/mirrored.gin'}"]
    flags = ["--mode=replay", f"--capsule={capsule}", *local]
    refused(*flags, cwd=folder, exit_code=2, says=["`--mode=replay`", "`Trainer.local_steps`"])
