"""Damaged checkpoints are skipped with a warning, others that don't fit are errors: long for the kinds."""

import ast
import json
import re
import shutil
from pathlib import Path

import pytest
import tensorflow as tf
from checkpoint_lab import DATA, INDEX, fail, flip_bit, model, newest, save, values

from core import checkpoint
from core.checkpoint import manifest as manifests
from core.errors import CheckpointError

# --- Damage ----------------------------------------------------------------------------------------------------------


def truncate(path: Path) -> str:
    content = (path / DATA).read_bytes()
    (path / DATA).write_bytes(content[:-1])
    return f"`{DATA}` has {len(content) - 1} bytes where {len(content)} were written"


def flip_data(path: Path) -> str:
    flip_bit(path / DATA)
    return f"`{DATA}` is not as it was written"


def flip_index(path: Path) -> str:
    flip_bit(path / INDEX)
    return f"`{INDEX}` is not as it was written"


def lose_data(path: Path) -> str:
    (path / DATA).unlink()
    return f"`{DATA}` is missing"


def lose_manifest(path: Path) -> str:
    (path / "manifest.json").unlink()
    return "`manifest.json` is missing"


def empty_manifest(path: Path) -> str:
    (path / "manifest.json").write_text("")
    return "`manifest.json` is not JSON"


def binary_manifest(path: Path) -> str:
    (path / "manifest.json").write_bytes(bytes(range(256)))
    return "`manifest.json` is not JSON"


def other_json(path: Path) -> str:
    (path / "manifest.json").write_text("[1, 2]")
    return "`manifest.json` is not as it was written"


def other_position(path: Path) -> str:
    text = (path / "manifest.json").read_text()
    (path / "manifest.json").write_text(text.replace('"examples": 640', '"examples": 641'))
    return "`manifest.json` is not as it was written"


def unreadable(path: Path) -> str:
    (path / INDEX).unlink()
    (path / INDEX).mkdir()
    return INDEX


DAMAGES = [
    truncate,
    flip_data,
    flip_index,
    lose_data,
    lose_manifest,
    empty_manifest,
    binary_manifest,
    other_json,
    other_position,
    unreadable,
]


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_walks_back_past_a_damaged_one_loudly(tmp_path, damage):
    save(tmp_path, model(1), 10)
    damaged = save(tmp_path, model(2), 20)
    what = damage(damaged)
    warnings: list[str] = []

    manifest = checkpoint.newest(tmp_path, warn=warnings.append)

    assert manifest is not None
    assert manifest.step == 10
    assert len(warnings) == 1
    assert str(damaged) in warnings[0]
    assert what in warnings[0]
    # The run resumes from 10, and its own step 20 replaces the damaged one.
    save(tmp_path, model(3), 20, keep=1)
    assert newest(tmp_path).step == 20


def test_every_flipped_bit_of_a_manifest_is_seen(tmp_path):
    path = save(tmp_path, {"w": tf.Variable(1.0)}, 10)
    text = (path / "manifest.json").read_bytes()
    for place in range(len(text)):
        changed = bytearray(text)
        changed[place] ^= 1 << place % 8
        (path / "manifest.json").write_bytes(changed)
        try:
            meant_the_same = json.loads(changed) == json.loads(text)  # a space that became a line feed, say
        except ValueError:
            meant_the_same = False
        if not meant_the_same:
            with pytest.raises(CheckpointError, match=r"manifest\.json"):
                checkpoint.newest(tmp_path, warn=lambda text: None)


def test_never_starts_afresh_in_silence(tmp_path):
    reasons = [truncate(save(tmp_path, model(), 10)), lose_manifest(save(tmp_path, model(), 20))]
    warnings: list[str] = []
    with pytest.raises(CheckpointError) as caught:
        checkpoint.newest(tmp_path, warn=warnings.append)
    assert caught.value.exit_code == 5
    for part in [*reasons, "step-000000010", "step-000000020", str(tmp_path), "--workdir"]:
        assert part in str(caught.value)
    assert len(warnings) == 2


def test_no_checkpoint_at_all(tmp_path):
    (tmp_path / "notes.txt").write_text("not a checkpoint")
    (tmp_path / ".tmp-step-000000001").mkdir()  # killed in the very first save
    assert checkpoint.newest(tmp_path, warn=fail) is None
    assert checkpoint.newest(tmp_path / "not/there", warn=fail) is None


def test_a_reader_next_to_a_running_trainer_takes_the_one_that_replaced_what_it_was_reading(tmp_path, monkeypatch):
    save(tmp_path, model(), 10)
    file_sha256 = manifests.file_sha256

    def overtaken(file: Path) -> str:
        monkeypatch.setattr(manifests, "file_sha256", file_sha256)
        save(tmp_path, model(), 20, keep=1)
        return file_sha256(file)

    monkeypatch.setattr(manifests, "file_sha256", overtaken)
    assert newest(tmp_path).step == 20


# --- What doesn't fit ------------------------------------------------------------------------------------------------


def test_mismatches_are_listed_in_a_table(tmp_path):
    saved = {"net/0/w": tf.zeros([8, 3]), "net/0/b": tf.zeros([3]), "head/w": tf.zeros([3, 10]), "same": tf.zeros([])}
    save(tmp_path, {path: tf.Variable(x) for path, x in saved.items()}, 10)
    made = {
        "net/0/kernel": tf.zeros([8, 3]),
        "net/0/b": tf.zeros([3], tf.float64),
        "head/w": tf.zeros([3, 12]),
        "same": tf.ones([]),
    }
    live = {path: tf.Variable(x) for path, x in made.items()}
    before = values(live)

    with pytest.raises(CheckpointError) as caught:
        checkpoint.restore(newest(tmp_path), live)

    rows = [line.split() for line in str(caught.value).splitlines() if line.startswith("  ")]
    assert rows == [
        ["variable", "this", "model", "checkpoint"],
        ["missing", "net/0/kernel", "float32[8,3]", "-"],
        ["unexpected", "net/0/w", "-", "float32[8,3]"],
        ["misshapen", "net/0/b", "float64[3]", "float32[3]"],
        ["misshapen", "head/w", "float32[3,12]", "float32[3,10]"],
    ]
    assert "`net/0/w` may now be called `net/0/kernel`" in str(caught.value)
    assert 'partial=["head/*", "net/*"]' in str(caught.value)
    assert values(live) == before


def test_the_advice_on_what_doesnt_fit_can_be_followed(tmp_path):
    saved = {
        "net/w": [1.0],
        "net/b": [2.0],
        "body/0/w": [3.0],
        "body/x[0]": [4.0, 4.0],
        "head/w": [5.0],
        "old/w": [6.0],
    }
    save(tmp_path, {path: tf.Variable(x) for path, x in saved.items()}, 10)
    made = {"net/w": [0.0], "net/b": [0.0, 0.0], "body/0/w": [0.0], "body/x[0]": [0.0], "head/w": [0.0]}
    live = {path: tf.Variable(x) for path, x in {**made, "new/0/w": [7.0], "new/0/b": [8.0]}.items()}

    with pytest.raises(CheckpointError) as caught:
        checkpoint.restore(newest(tmp_path), live, partial=["head/w"])

    advice = re.search(r"`restore\(manifest, variables, partial=(\[.*\])\)`", str(caught.value))[1]
    patterns = ast.literal_eval(advice)
    assert patterns == ["head/w", "body/x[[]0]", "net/b", "new/*", "old/*"]
    checkpoint.restore(newest(tmp_path), live, partial=patterns)
    assert {path: v.numpy().tolist() for path, v in live.items()} == {
        "net/w": [1.0],
        "net/b": [0.0, 0.0],
        "body/0/w": [3.0],
        "body/x[0]": [0.0],
        "head/w": [0.0],
        "new/0/w": [7.0],
        "new/0/b": [8.0],
    }


def test_where_nothing_fits_there_is_nothing_to_take_over(tmp_path):
    save(tmp_path, {"net/w": tf.Variable(1.0)}, 10)
    with pytest.raises(CheckpointError, match="Nothing of it fits") as caught:
        checkpoint.restore(newest(tmp_path), {"other/b": tf.Variable([0.0])})
    assert "partial" not in str(caught.value)


def test_a_long_table_is_cut(tmp_path):
    save(tmp_path, {"x": tf.Variable(0.0)}, 10)
    live = {f"layers/{i}": tf.Variable([0.0]) for i in range(100)}
    with pytest.raises(CheckpointError, match=r"\.\.\. and 71 more"):
        checkpoint.restore(newest(tmp_path), live)


def test_partial_leaves_what_matches_as_it_is(tmp_path):
    saved = {"net/w": 1.0, "head/w": 2.0, "head/b": 3.0, "old/w": 4.0}
    save(tmp_path, {path: tf.Variable(x) for path, x in saved.items()}, 10)
    live = {"net/w": tf.Variable(0.0), "head/w": tf.Variable([0.0, 0.0]), "head/b": tf.Variable(0.0)}
    live["new/w"] = tf.Variable(5.0)

    checkpoint.restore(newest(tmp_path), live, partial=["head/*", "old/?", "new/w"])

    assert {path: v.numpy().tolist() for path, v in live.items()} == {
        "net/w": 1.0,
        "head/w": [0.0, 0.0],
        "head/b": 0.0,
        "new/w": 5.0,
    }


def test_partial_is_strict_about_the_rest(tmp_path):
    save(tmp_path, {"net/w": tf.Variable(1.0)}, 10)
    with pytest.raises(CheckpointError, match=r"missing +net/b"):
        checkpoint.restore(newest(tmp_path), {"net/w": tf.Variable(0.0), "net/b": tf.Variable(0.0)}, partial=["*/w"])


def test_a_pattern_that_matches_nothing_is_an_error(tmp_path):
    save(tmp_path, {"head/w": tf.Variable(1.0)}, 10)
    with pytest.raises(CheckpointError, match=r"'haed/w'.*Did you mean `head/w`"):
        checkpoint.restore(newest(tmp_path), {"head/w": tf.Variable(0.0)}, partial=["haed/w"])


def test_bytes_that_came_out_otherwise_are_an_error(tmp_path):
    save(tmp_path, {"w": tf.Variable(1.0)}, 10)
    other = save(tmp_path / "other", {"w": tf.Variable(2.0)}, 10)
    manifest = newest(tmp_path)
    for file in (DATA, INDEX):  # swapped after `newest` looked: TensorFlow's own checksums are right
        (manifest.path / file).write_bytes((other / file).read_bytes())
    with pytest.raises(CheckpointError, match="`w` differ from the saved bytes"):
        checkpoint.restore(manifest, {"w": tf.Variable(0.0)})


@pytest.mark.parametrize("damage", [flip_data, truncate, lose_data, flip_index], ids=lambda damage: damage.__name__)
def test_damage_after_the_look_is_an_error(tmp_path, damage):
    save(tmp_path, model(1), 10)
    manifest = newest(tmp_path)
    damage(manifest.path)
    with pytest.raises(CheckpointError, match="step-000000010"):
        checkpoint.restore(manifest, model(2))


def test_copy_in_the_folder_of_another_step_is_damaged(tmp_path):
    for step in (50, 80):
        save(tmp_path, model(step), step, keep=9)
    shutil.copytree(tmp_path / "step-000000050", tmp_path / "step-000000500")
    warnings = []
    assert checkpoint.newest(tmp_path, warn=warnings.append).step == 80
    (warning,) = warnings
    assert "its folder is that of another step: `manifest.json` is of step 50" in warning


def test_checkpoint_may_be_read_from_a_folder_of_any_other_name(tmp_path):
    save(tmp_path, model(1), 50)
    (tmp_path / "step-000000050").rename(tmp_path / "best")
    assert manifests.verified(tmp_path / "best").step == 50


# --- Places that can't be used ---------------------------------------------------------------------------------------


def test_a_file_where_the_directory_should_be(tmp_path):
    (tmp_path / "checkpoints").write_text("")
    with pytest.raises(CheckpointError, match=r"step 10 could not be written to.*checkpoints.*--workdir"):
        save(tmp_path / "checkpoints", model(), 10)
    with pytest.raises(CheckpointError, match=r"checkpoints.*--workdir"):
        checkpoint.newest(tmp_path / "checkpoints", warn=fail)


def test_keep_counts_from_one(tmp_path):
    with pytest.raises(ValueError, match="`keep` is 0"):
        save(tmp_path, model(), 10, keep=0)
