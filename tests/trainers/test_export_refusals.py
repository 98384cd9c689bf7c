"""Errors that stop an export before or in its fresh process, and the folders that it leaves."""

import json
import os
import runpy
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from core.data import ArraySource
from core.disk import remove_unfinished_folders
from core.errors import CheckpointError, ConfigurationError, NoRoomError
from core.precision import FLOAT32
from core.task import Served
from trainers.export import alone, compare, folder
from trainers.export.compare import Difference, Examples, computed_alone, differences, examples_of
from trainers.export.folder import write_export
from trainers.modes import export


def test_folder_that_cannot_be_made_is_refused_before_anything_is_computed(tmp_path):
    (tmp_path / "file").write_text("")
    for target in (tmp_path / "file" / "below", tmp_path / "file" / "below" / "deeper"):
        with pytest.raises(ConfigurationError, match=r"can't be written: Not a directory.*--export_dir=DIR"):
            write_export(target, None, None, None, {})


def test_one_of_several_processes_exports_nothing(monkeypatch):
    cluster = {"worker": ["127.0.0.1:5001", "127.0.0.1:5002"]}
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": cluster, "task": {"type": "worker", "index": 1}}))
    with pytest.raises(ConfigurationError, match=r"one process.*worker 1 .* of 2.*unset `TF_CONFIG`"):
        export.run(SimpleNamespace(flags=SimpleNamespace(format="saved_model", weights="float32")))


def test_fresh_process_that_never_ends(tmp_path, monkeypatch):
    monkeypatch.setattr(compare, "SECONDS", 0.01)
    with pytest.raises(CheckpointError, match="didn't finish with its saved_model in 0 s"):
        computed_alone("saved_model", tmp_path, {}, tmp_path / "compared")


@pytest.mark.parametrize(
    ("code", "error", "says"), [(8, OSError, "No space left"), (7, CheckpointError, "it ended with 7.*Nothing was put")]
)
def test_fresh_process_that_fails(code, error, says, tmp_path, monkeypatch):
    (tmp_path / "ends.py").write_text(f"raise SystemExit({code})")
    monkeypatch.setattr(compare, "alone", SimpleNamespace(__file__=str(tmp_path / "ends.py")))
    with pytest.raises(error, match=says):
        computed_alone("saved_model", tmp_path, {}, tmp_path / "compared")


def test_fresh_process_computes_on_the_cpu_as_the_export_does(tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    (tmp_path / "ends.py").write_text(
        "import os; raise SystemExit(7 if os.environ['CUDA_VISIBLE_DEVICES'] == '-1' else 1)"
    )
    monkeypatch.setattr(compare, "alone", SimpleNamespace(__file__=str(tmp_path / "ends.py")))
    with pytest.raises(CheckpointError, match="it ended with 7"):
        computed_alone("saved_model", tmp_path, {}, tmp_path / "compared")


def test_full_disk_in_the_fresh_process(tmp_path, monkeypatch):
    for name in ("core", "models", "trainers"):
        monkeypatch.setitem(sys.modules, name, sys.modules.get(name))  # to be put back: the process bars them
    tf.saved_model.save(tf.Module(), str(tmp_path / "model"))
    (tmp_path / "made.npz").symlink_to("/dev/full")
    np.savez(tmp_path / "given.npz")
    files = [str(tmp_path / name) for name in ("model", "given.npz", "made.npz")]
    monkeypatch.setattr(sys, "argv", ["alone.py", "saved_model", *files])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(alone.__file__, run_name="__main__")
    assert ended.value.code == NoRoomError.exit_code


@pytest.mark.parametrize(
    ("message", "error", "says"),
    [
        ("a/.b.1.tmp/part-0; No space left on device [Op:SaveV2]", NoRoomError, "/made` can't.*No space.*then exports"),
        ("a/.b.1.tmp/part-0; Input/output error", tf.errors.UnknownError, "Input/output"),
    ],
)
def test_full_disk_where_tensorflow_writes(message, error, says, tmp_path, monkeypatch):
    def fail(*_, **__):
        raise tf.errors.UnknownError(None, None, message)

    monkeypatch.setattr(folder, "examples_of", fail)
    program = SimpleNamespace(precision=FLOAT32)
    with pytest.raises(error, match=says):
        write_export(tmp_path / "made", program, None, SimpleNamespace(weights="float32"), {})
    assert not list(tmp_path.iterdir())


def test_export_that_computes_something_else_is_not_put_in_place(tmp_path, monkeypatch):
    def computed(kind, path, given, scratch):
        scratch.mkdir()
        return {"f/0/y": np.array([1.0, 2.1])}

    examples = Examples({}, {"f/0/y": np.array([1.0, 2.0])}, {"f": [2]})
    monkeypatch.setattr(folder, "examples_of", lambda *_, **__: examples)
    monkeypatch.setattr(folder, "write", lambda kind, program, temporary, **_: temporary / "model")
    monkeypatch.setattr(folder, "computed_alone", computed)
    program = SimpleNamespace(served={"f": Served(dict, {})}, precision=FLOAT32)
    asked = SimpleNamespace(weights="float32", formats=["saved_model"])
    with pytest.raises(CheckpointError, match=r"`y` of `f`.* 0\.05 of .*random numbers.*Nothing was put in place"):
        write_export(tmp_path / "made", program, None, asked, {})
    assert not list(tmp_path.iterdir())


def test_leftovers_of_a_killed_export_alone_are_removed(tmp_path, monkeypatch):
    gone, alive = subprocess.Popen(["true"]), os.getppid()
    gone.wait()
    mine = [f".made.{gone.pid}.tmp", f".made.{alive}.tmp", f".other.{gone.pid}.tmp", f".{gone.pid}.tmp"]
    for name in mine:
        (tmp_path / name / "saved_model").mkdir(parents=True)
    (tmp_path / f".file.{gone.pid}.tmp").write_text("")
    monkeypatch.setattr(folder, "examples_of", lambda *_, **__: 1 / 0)
    program = SimpleNamespace(precision=FLOAT32)
    with pytest.raises(ZeroDivisionError):
        write_export(tmp_path / "made", program, None, SimpleNamespace(weights="float32"), {})
    assert {path.name for path in tmp_path.iterdir()} == {*mine[1:], f".file.{gone.pid}.tmp"}
    remove_unfinished_folders(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {mine[1], mine[3], f".file.{gone.pid}.tmp"}


class Kinds:
    """Stands for a served function: all dtypes that NumPy can't store as they are, and a single text."""

    task = None
    functions = {  # noqa: RUF012
        "f": lambda x: {"half": tf.cast(x, tf.bfloat16), "text": tf.as_string(x), "one": tf.constant("low")}
    }
    served = {"f": Served(dict, {"x": tf.TensorSpec([None])})}  # noqa: RUF012


def test_texts_and_bfloat16_are_compared():
    source = ArraySource({"x": tf.range(40.0).numpy()}, name="numbers")
    examples = examples_of(Kinds, source, weights="float32")
    assert examples.expected["f/1/half"].tolist() == [1.0, 2.0, 3.0]
    assert examples.expected["f/0/one"].tolist() == b"low"
    found = differences(examples.expected, examples.expected, Kinds.served)["f"]
    assert found == {"half": Difference(0.0), "text": Difference(0.0, 1.0), "one": Difference(0.0, 1.0)}
    other = {**examples.expected, "f/0/one": np.asarray(b"high", object)}
    assert differences(examples.expected, other, Kinds.served)["f"]["one"] == Difference(0.0, pytest.approx(2 / 3))
