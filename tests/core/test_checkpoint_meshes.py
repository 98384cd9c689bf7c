"""A mesh's checkpoints have the same hashes and bytes on every mesh and device."""

import json
import math

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.experimental import dtensor

from benchmarks import mesh_checkpoints
from core import checkpoint
from core.checkpoint import parts
from core.checkpoint.manifest import described
from core.checkpoint.parts import in_order, shape_and_slice
from core.errors import CheckpointError
from core.optimizers import adamw, chain, ema
from core.parallel.mesh import variable
from core.testing import assemble, on_virtual_cpus, on_virtual_mesh
from models.classifiers.mlp import MlpClassifier
from tests.core.checkpoint_lab import DATA, flip_bit, newest, save, values

CUTS = {  # by shape, so that all differ
    "rows": ([6, 5], "float32", ("model", "-")),
    "columns": ([3, 4], "float32", ("-", "model")),
    "both": ([4, 3, 10], "float64", ("batch", "-", "model")),
    "by.batch/first": ([8, 1], "int32", ("batch", "-")),
    "half": ([2, 6], "bfloat16", ("model", "batch")),
    "mask": ([2, 2, 3], "bool", ("batch", "model", "-")),
    "whole": ([7], "float32", ("-",)),
    "step": ([], "int64", ()),
    "empty": ([0, 3], "float32", ("-", "-")),
}
MESHES = ["1x2", "2x1", "2x2"]
WAYS = [("2x1", "2x2"), ("2x2", "one device"), ("one device", "1x2"), ("1x2", "2 replicas")]


def variables_on(place, seed=None):
    """Makes the same variables on any layout; zeros if they have no seed."""
    random = np.random.default_rng(seed)

    def made():
        return {
            path: tf.Variable(
                tf.cast(np.zeros(shape) if seed is None else np.round(random.normal(size=shape)), dtype),
                trainable=False,
            )
            for path, (shape, dtype, _) in CUTS.items()
        }

    if place in MESHES:
        axes = {tuple(shape): axes for shape, _, axes in CUTS.values()}
        with on_virtual_mesh(*map(int, place.split("x"))).scope(lambda shape: axes[tuple(shape)]):
            return made()
    with on_virtual_cpus(2 if place == "2 replicas" else 1).scope():
        return made()


@pytest.fixture
def never_joined(monkeypatch):
    """Fails if the whole variable is assembled, or a larger part than stated is passed."""

    def relayout(*args, **kwargs):
        raise AssertionError("a variable was gathered")

    monkeypatch.setattr(parts, "MOST_BYTES", 16)
    monkeypatch.setattr(dtensor, "relayout", relayout)
    together = variable._put_together

    def put_together(held, wanted, dtype):
        assert math.prod(last - first for first, last in wanted) * dtype.size <= 16
        return together(held, wanted, dtype)

    monkeypatch.setattr(variable, "_put_together", put_together)


@pytest.mark.long
@pytest.mark.parametrize(("before", "after"), WAYS)
def test_saved_anywhere_and_restored_anywhere(before, after, tmp_path, request):
    saved, live, expected = variables_on(before, 0), variables_on(after), values(variables_on("one device", 0))
    request.getfixturevalue("never_joined")
    save(tmp_path, saved, 1)
    checkpoint.restore(newest(tmp_path), live)
    hashes = newest(tmp_path).variables
    assert hashes == {path: described(v) for path, v in live.items()}
    request.getfixturevalue("monkeypatch").undo()
    assert values(live) == expected
    assert hashes == {path: described(v) for path, v in variables_on("one device", 0).items()}


@pytest.fixture
def elsewhere(monkeypatch):
    """Makes a process take its content for a part only, as if others held the rest."""
    monkeypatch.setattr(variable.MeshVariable, "is_here", lambda self: False)


@pytest.mark.parametrize("before", ["2x2", "one device"])
def test_parts_in_other_processes_are_hashed_from_the_file_and_compared_with_it(before, tmp_path, request):
    saved, live, expected = variables_on(before, 0), variables_on("2x2"), values(variables_on("one device", 0))
    hashes = {path: described(variable) for path, variable in variables_on("one device", 0).items()}
    request.getfixturevalue("elsewhere")
    request.getfixturevalue("never_joined")
    save(tmp_path, saved, 1)
    assert newest(tmp_path).variables == hashes
    checkpoint.restore(newest(tmp_path), live)
    request.getfixturevalue("monkeypatch").undo()
    assert values(live) == expected


def test_a_file_of_parts_is_read_whole_by_tensorflow_alone(tmp_path):
    saved = variables_on("2x2", 0)
    reader = tf.train.load_checkpoint(save(tmp_path, saved, 1) / "variables")
    for path, value in values(saved).items():
        key = f"variables/{path.replace('.', '..').replace('/', '.S')}/.ATTRIBUTES/VARIABLE_VALUE"
        assert reader.get_tensor(key).tobytes() == value, path


def test_variables_keep_their_sharding(tmp_path):
    save(tmp_path, variables_on("2x2", 0), 1)
    live = variables_on("2x2")
    checkpoint.restore(newest(tmp_path), live)
    held = [x.shape.as_list() for x in dtensor.unpack(live["both"].read_value())]
    assert held == [[2, 3, 5]] * 4


def test_a_part_that_is_damaged_or_missing_is_found(tmp_path):
    for step in (1, 2, 3):
        save(tmp_path, variables_on("2x2", step), step)
    files = [path / DATA for path in sorted(tmp_path.iterdir())]
    flip_bit(files[2])
    files[1].unlink()
    said = []
    assert checkpoint.newest(tmp_path, warn=said.append).step == 1
    assert "is not as it was written (its SHA-256 differs)" in said[0]
    assert f"`{DATA}` is missing" in said[1]


def test_a_part_that_goes_while_it_is_read_is_an_error_that_names_the_checkpoint(tmp_path):
    save(tmp_path, variables_on("2x2", 0), 1)
    manifest = newest(tmp_path)
    for file in manifest.path.glob("variables.data-*"):
        file.unlink()
    with pytest.raises(CheckpointError, match=r"step-000000001` could not be read: .*If it was removed or damaged"):
        checkpoint.restore(manifest, variables_on("1x2"))


@pytest.mark.parametrize("where", ["here", "elsewhere"])
def test_a_device_that_holds_other_bytes_than_were_read_is_found(where, tmp_path, monkeypatch, request):
    save(tmp_path, variables_on("2x2", 0), 1)
    if where == "elsewhere":
        request.getfixturevalue("elsewhere")
    take = variable.MeshVariable.assign_parts

    def wrong(self, read):
        take(self, read)
        if self.shape == [3, 4]:
            self.assign(tf.zeros_like(self.read_value()))

    monkeypatch.setattr(variable.MeshVariable, "assign_parts", wrong)
    with pytest.raises(CheckpointError, match="`columns` differ from the saved bytes"):
        checkpoint.restore(newest(tmp_path), variables_on("2x2"))


@pytest.mark.parametrize("shape", [(), (1,), (60,), (3, 20), (4, 3, 5), (60, 1), (1, 60), (2, 0, 3), (0,)])
def test_boxes_are_the_whole_in_row_major_order(shape):
    whole = np.arange(math.prod(shape)).reshape(shape)
    for most in (1, 2, 5, 6, 7, 30, 59, 60, 1000):
        found = [whole[tuple(slice(*bounds) for bounds in box)] for box in in_order(shape, most)]
        assert all(part.size <= most for part in found)
        assert [n for part in found for n in part.reshape(-1)] == list(range(whole.size))
        assert len(found) <= max(1, 2 * whole.size / most) or whole.ndim > 2


@pytest.mark.parametrize(
    ("shape", "box", "spec"),
    [
        ((), (), ""),
        ((4,), ((0, 4),), ""),
        ((4, 6), ((0, 4), (3, 6)), "4 6 0,4:3,3"),
        ((4, 6), ((1, 2), (0, 6)), "4 6 1,1:0,6"),
    ],
)
def test_a_part_goes_by_the_name_that_tensorflow_gives_it(shape, box, spec):
    assert shape_and_slice(shape, box) == spec


def averaging_mlp(*, rng):
    return MlpClassifier(sizes=[64, 32], optimizer=chain(adamw(1e-2), ema(0.9)), rng=rng)


@pytest.mark.long
def test_slots_that_are_sharded_further_are_restored_on_other_layouts(tmp_path):
    """As in ZeRO-1, from mesh to mesh and back to one device."""
    strategies = [
        on_virtual_cpus(1),
        on_virtual_mesh(2, 2, [("net/layers/0/?", "...,model")], slot_layouts=[("net/layers/0/w", "batch,model")]),
        on_virtual_mesh(4, 1, slot_layouts=[("*/0/w", "-,batch"), ("*/0/b", "batch")]),
        on_virtual_cpus(1),
    ]
    cuts = []
    for step, strategy in enumerate(strategies):
        variables = assemble(averaging_mlp, strategy, seed=step).variables
        if step:
            checkpoint.restore(newest(tmp_path), variables)
        else:
            random = np.random.default_rng(0)
            for variable in variables.values():
                variable.assign(tf.cast(100 * random.normal(size=variable.shape), variable.dtype))
        save(tmp_path, variables, step, keep=9)
        slot = variables["optimizer/net/adamw/m/layers/0/w"]
        cuts.append([x.shape.as_list() for x in dtensor.unpack(slot.read_value())] if 0 < step < 3 else None)
    assert cuts[1:3] == [[[32, 16]] * 4, [[64, 8]] * 4]
    saved = [json.loads((path / "manifest.json").read_text())["variables"] for path in sorted(tmp_path.iterdir())]
    assert saved == [saved[0]] * 4


@pytest.mark.long
def test_saving_and_restoring_take_no_memory_for_the_whole(tmp_path, monkeypatch):
    """Either way: a sharded variable of 128 MB is fetched in parts of 8, where a gathered one took 1.7 GB.

    `never_joined` shows the same for one process.
    """
    size = 128
    beside = 1.75 * size  # the copy that is written, or the parts that were read
    monkeypatch.setattr(parts, "MOST_BYTES", 8 << 20)
    with on_virtual_mesh(2, 2).scope(lambda shape: ("batch", "model")):
        save(tmp_path, {"w": tf.Variable(tf.zeros([size << 5, 8192]))}, 1)
    assert mesh_checkpoints.cost("restore, save", tmp_path, size, 8, workers=2).megabytes < beside
