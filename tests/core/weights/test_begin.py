"""Warm starts restore a checkpoint to the bit: everything requested, or nothing and a table."""

from shutil import rmtree

import numpy as np
import pytest
import tensorflow as tf

from core import layers
from core.checkpoint import of_step
from core.errors import CheckpointError, ConfigurationError
from core.module import Module, named_variables
from core.random import Rng
from core.task.statistics import commit, refreshed
from core.testing import on_virtual_cpus
from core.weights import AVERAGES, StartFrom, begin_with, checkpoint, of_checkpoint
from tests.core.checkpoint_lab import DATA, flip_bit, save


class Net(tf.Module):
    """Variables by path, each with another value."""

    def __init__(self, seed, **shapes):
        rng = np.random.default_rng(seed)
        for name, shape in shapes.items():
            setattr(self, name, tf.Variable(rng.normal(size=shape).astype(np.float32)))
        self.count = tf.Variable(seed, dtype=tf.int64)


def variables(net):
    return {v: getattr(net, v) for v in vars(net) if isinstance(getattr(net, v), tf.Variable)}


def save_net(folder, net, *, step=7, slots=(), **options):
    saved = {f"task/{path}": v for path, v in variables(net).items()}
    return save(folder / "checkpoints", {**saved, **dict(slots)}, step, **options)


@pytest.fixture
def source(tmp_path):
    net = Net(1, body=[3, 2], head=[2])
    save_net(tmp_path / "a", net)
    return net


def begin(tmp_path, task, **choices):
    return begin_with(checkpoint(str(tmp_path / "a"), **choices), task)


def test_all_is_taken_bit_for_bit_and_remembered(tmp_path, source):
    save_net(tmp_path / "a", Net(3, body=[3, 2], head=[2]), step=5)  # an older one
    task = Net(2, body=[3, 2], head=[2])
    begun = begin(tmp_path, task)
    for path, variable in variables(source).items():
        assert variable.numpy().tobytes() == getattr(task, path).numpy().tobytes()
    newest = tmp_path / "a" / "checkpoints" / "step-000000007"
    assert begun.record == {
        "path": str(newest), "step": 7, "sha256": begun.record["sha256"],
        "variables": {path: path for path in ("body", "count", "head")},
    }  # fmt: skip
    assert begun.line == f"begins with `{newest}`: 3 of 3 variables"


def test_a_checkpoint_can_be_named_in_place_of_its_run(tmp_path, source):
    older = save_net(tmp_path / "a", old := Net(3, body=[3, 2], head=[2]), step=5)
    task = Net(2, body=[3, 2], head=[2])
    assert begin_with(checkpoint(str(older)), task).record["step"] == 5
    assert task.body.numpy().tolist() == old.body.numpy().tolist()


def test_part_of_it_is_taken_under_other_names_and_the_rest_stays(tmp_path, source):
    task = Net(2, trunk=[3, 2], head=[5])
    head = task.head.numpy().tolist()
    begun = begin(tmp_path, task, take=["tr*"], rename={"body": "trunk"})
    assert task.trunk.numpy().tolist() == source.body.numpy().tolist()
    assert (task.head.numpy().tolist(), int(task.count)) == (head, 2)
    assert begun.record["variables"] == {"trunk": "body"}
    assert "1 of 3 variables; as initialised: `count`, `head`; not taken: `" in begun.line


def test_missing_misshapen_and_unused_variables_are_listed_in_a_table(tmp_path, source):
    task = Net(2, trunk=[3, 2], head=[5])
    before = {path: v.numpy().tolist() for path, v in variables(task).items()}
    with pytest.raises(CheckpointError) as error:
        begin(tmp_path, task)
    text = str(error.value)
    assert "(1 of 3 variables fit)" in text
    rows = [line.split() for line in text.splitlines() if line.startswith("  ")][1:]
    assert rows == [
        ["missing", "trunk", "float32[3,2]", "-"],
        ["misshapen", "head", "float32[5]", "float32[2]"],
        ["unexpected", "body", "-", "float32[3,2]"],
    ]
    assert "['count'] fits" in text
    assert {path: v.numpy().tolist() for path, v in variables(task).items()} == before


def test_two_weights_for_one_variable_are_refused(tmp_path, source):
    task = Net(2, head=[2])
    with pytest.raises(ConfigurationError, match=r"`body` and `head` of .* to one variable, `head`"):
        begin(tmp_path, task, rename={"body": "head"})
    begin(tmp_path, Net(2, head=[3, 2]), rename={"head": "other", "body": "head"})


def test_averages_are_restored_from_their_place_unless_the_weights_are_requested(tmp_path, source):
    average = tf.Variable(source.body + 1.0)
    slots = {"optimizer/net/ema/average/body": average}
    save_net(tmp_path / "a", source, slots=slots, extra={AVERAGES: {"body": next(iter(slots))}})
    task = Net(2, body=[3, 2], head=[2])
    assert begin(tmp_path, task).line.endswith("3 of 3 variables, 1 of them averages")
    assert task.body.numpy().tolist() == average.numpy().tolist()
    begin(tmp_path, task, averaged=False)
    assert task.body.numpy().tolist() == source.body.numpy().tolist()
    save_net(tmp_path / "a", source, slots=slots)
    with pytest.raises(CheckpointError, match=r"too old to say where they are stored\. Give `averaged=False`"):
        begin(tmp_path, task)
    save_net(tmp_path / "a", source, extra={AVERAGES: {"body": None}})
    with pytest.raises(CheckpointError, match="its optimizer computes `body`"):
        begin(tmp_path, task)


def spectral(seed):
    task = Module()
    task.net = layers.SpectralNorm(layers.Linear(6, 5, rng=Rng.from_seed(seed)), rng=Rng.from_seed(seed))
    return task


def save_spectral(folder, task, **options):
    slots = options.pop("slots", {})
    return save(
        folder / "a/checkpoints", {f"task/{p}": v for p, v in named_variables(task).items()} | slots, 7, **options
    )


@pytest.mark.parametrize("strategy", [tf.distribute.get_strategy, lambda: on_virtual_cpus(2)], ids=["one", "two"])
def test_variables_derived_from_weights_follow_the_loaded_ones(strategy, tmp_path):
    old = spectral(1)
    old.net.layer.w.assign(old.net.layer.w @ np.diag([1.0, 9.0, 0.1, 1.0, 1.0]).astype(np.float32))
    average = tf.Variable(old.net.layer.w @ np.diag([5.0, 0.1, 1.0, 1.0, 1.0]).astype(np.float32))
    save_spectral(tmp_path, old, slots={"average": average}, extra={AVERAGES: {"net/layer/w": "average"}})
    with strategy().scope():
        task = spectral(2)
    begin(tmp_path, task, averaged=False)
    assert task.net.vector.numpy().tobytes() == old.net.vector.numpy().tobytes()
    begin(tmp_path, task)
    old.net.layer.w.assign(average)
    commit(refreshed(old))  # as evaluation of averages does
    np.testing.assert_allclose(task.net.vector.numpy(), old.net.vector.numpy(), atol=1e-6)
    with strategy().scope():
        task = spectral(3)
    save_spectral(tmp_path / "c", spectral(4))
    begin(tmp_path / "c", task, take=["net/layer/w"])
    assert np.linalg.svd(task.net.kernel().numpy())[1][0] == pytest.approx(1.0, abs=1e-3)
    with strategy().scope():
        task = spectral(3)
    task.net.vector.assign([0.0, 1.0, 0.0, 0.0, 0.0])
    before = task.net.vector.numpy()
    save_net(tmp_path / "b", Net(1, other=[2]))
    task.other = tf.Variable([0.0, 0.0])
    begin_with(checkpoint(str(tmp_path / "b"), take=["other"]), task)
    assert task.net.vector.numpy().tobytes() == before.tobytes()


@pytest.mark.parametrize("when", ["at first", "later"])
def test_a_checkpoint_that_its_run_removes_meanwhile_is_named(when, tmp_path, source, monkeypatch):
    folder, task = tmp_path / "a/checkpoints/step-000000007", Net(2, body=[3, 2], head=[2])
    if when == "at first":
        monkeypatch.setattr(of_checkpoint, "newest", lambda *_, **__: [of_step(folder.parent, 7), rmtree(folder)][0])
        weights = checkpoint(str(tmp_path / "a"))
    else:
        opened = checkpoint(str(tmp_path / "a")).open()
        rmtree(folder)
        weights = StartFrom(lambda: opened, "a")
    before = task.body.numpy().tolist()
    with pytest.raises(CheckpointError, match=r"of `.*7` could not be read: .* run the same command again"):
        begin_with(weights, task)
    assert task.body.numpy().tolist() == before


def test_missing_or_damaged_checkpoint_is_named(tmp_path, source):
    task = Net(2, body=[3, 2], head=[2])
    (tmp_path / "baseline").mkdir()
    with pytest.raises(CheckpointError, match=r"isn't a folder\. Did you mean `baseline`\? Give"):
        begin_with(checkpoint(str(tmp_path / "basline")), task)
    with pytest.raises(CheckpointError, match=r"isn't a folder\. Give"):
        begin_with(checkpoint(str(tmp_path / "other")), task)
    (tmp_path / "empty").mkdir()
    with pytest.raises(CheckpointError, match=r"`.*/empty`, from which this run should start, holds no checkpoint"):
        begin_with(checkpoint(str(tmp_path / "empty")), task)
    (tmp_path / "a.npz").touch()
    with pytest.raises(CheckpointError, match=r"isn't a folder\. For a weight file, use `@npz_weights\(\)`"):
        begin_with(checkpoint(str(tmp_path / "a.npz")), task)
    folder = tmp_path / "a" / "checkpoints" / "step-000000007"
    flip_bit(folder / DATA)
    with pytest.raises(CheckpointError, match=r"can't start from the checkpoint .*its SHA-256 differs"):
        begin_with(checkpoint(str(folder)), task)
    with pytest.raises(CheckpointError, match="None of the checkpoints"):
        begin(tmp_path, task)


def test_weights_that_arent_finite_are_refused(tmp_path, source):
    source.body.assign(source.body * np.nan)
    save_net(tmp_path / "a", source)
    with pytest.raises(CheckpointError, match=r"`body` of .* has values that aren't finite"):
        begin(tmp_path, Net(2, body=[3, 2]), take=["body"])


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        *(("take", take) for take in ["net/*", [], 3, [3], {"net/*"}]),
        ("rename", [("a", "b")]),
        ("transpose", {3: [1, 0]}),
        ("path", ""),
        ("path", None),
    ],
)
def test_unknown_choice_is_refused_before_a_file_is_opened(argument, value):
    with pytest.raises(ConfigurationError, match=rf"`{argument}` is .*; give "):
        StartFrom(lambda: pytest.fail("opened"), **{"path": "a", argument: value})
