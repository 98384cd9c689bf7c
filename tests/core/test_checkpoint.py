"""Checkpoints: real files, real damage, real kills."""

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from core import checkpoint
from core.errors import CheckpointError

DATA, INDEX = "variables.data-00000-of-00001", "variables.index"


def model(seed: int = 0) -> dict[str, tf.Variable]:
    x = np.random.default_rng(seed).normal(size=[8, 3]).astype(np.float32)
    return {
        "net/layers/0/w": tf.Variable(x),
        "net/layers/0/b": tf.Variable(x[0]),
        "step": tf.Variable(2**40 + seed, dtype=tf.int64),
    }


def values(variables: dict[str, tf.Variable]) -> dict[str, bytes]:
    return {path: np.asarray(v.numpy()).tobytes() for path, v in variables.items()}


def save(directory: Path, variables: dict[str, tf.Variable], step: int, **options: object) -> Path:
    return checkpoint.save(
        directory, variables, **{"step": step, "examples": 32 * step, "config_hash": "c0", **options}
    )


def fail(text: str) -> None:
    pytest.fail(f"unexpected warning: {text}")


def newest(directory: Path) -> checkpoint.Manifest:
    manifest = checkpoint.newest(directory, warn=fail)
    assert manifest is not None
    return manifest


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def flip_bit(file: Path, place: float = 0.5) -> None:
    content = bytearray(file.read_bytes())
    content[int(place * (len(content) - 1))] ^= 1
    file.write_bytes(content)


# --- There and back --------------------------------------------------------------------------------------------------


def test_round_trip(tmp_path):
    saved = model(1)
    extra = {"figures": {"loss": 0.1 + 0.2, "worst": float("inf")}, "note": "ü"}
    path = save(tmp_path / "not/yet/there", saved, 1000, extra=extra)
    assert path == tmp_path / "not/yet/there/step-000001000"

    live = model(2)
    manifest = newest(path.parent)
    checkpoint.restore(manifest, live)

    assert values(live) == values(saved)
    assert (manifest.path, manifest.step, manifest.examples, manifest.config_hash) == (path, 1000, 32000, "c0")
    assert manifest.extra == extra
    assert manifest.variables["net/layers/0/w"] == (
        (8, 3),
        "float32",
        hashlib.sha256(values(saved)["net/layers/0/w"]).hexdigest(),
    )


def test_manifest_holds_what_the_design_says(tmp_path):
    path = save(tmp_path, model(), 7)
    manifest = json.loads((path / "manifest.json").read_text())
    assert manifest["files"] == {
        name: {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        for name, data in [(DATA, (path / DATA).read_bytes()), (INDEX, (path / INDEX).read_bytes())]
    }
    assert manifest["variables"]["step"]["dtype"] == "int64"
    assert manifest["versions"].keys() == {"tapeloop", "tensorflow", "numpy", "python"}
    assert manifest["versions"]["tensorflow"] == tf.__version__
    assert names(path) == ["manifest.json", DATA, INDEX]


@pytest.mark.parametrize(
    "value",
    [
        tf.constant([1.5, -0.0, float("nan")], tf.bfloat16),
        tf.constant([1.5, -2.0], tf.float16),
        tf.constant(2**62 + 1, tf.int64),
        tf.constant([[True, False]]),
        tf.constant(["a", "bcd", ""]),
        tf.zeros([0, 3]),
        tf.constant([1 + 2j]),
    ],
    ids=lambda value: value.dtype.name,
)
def test_any_dtype(tmp_path, value):
    save(tmp_path, {"x": tf.Variable(value)}, 1)
    live = tf.Variable(tf.zeros_like(value))
    checkpoint.restore(newest(tmp_path), {"x": live})
    assert tf.io.serialize_tensor(live) == tf.io.serialize_tensor(value)


def test_any_name_and_reading_without_tapeloop(tmp_path):
    paths = ["a/b", "a.b", "a.Sb", "a..b/c", "save_counter", "root", "_x", "übung/ß", "with space"]
    path = save(tmp_path, {name: tf.Variable(i) for i, name in enumerate(paths)}, 1)
    live = {name: tf.Variable(-1) for name in paths}
    checkpoint.restore(newest(tmp_path), live)
    assert [v.numpy() for v in live.values()] == list(range(len(paths)))

    reader = tf.train.load_checkpoint(str(path / "variables"))
    for i, name in enumerate(paths):
        escaped = name.replace(".", "..").replace("/", ".S")
        assert reader.get_tensor(f"variables/{escaped}/.ATTRIBUTES/VARIABLE_VALUE") == i


@pytest.mark.parametrize(
    "strategy",
    [
        lambda: tf.distribute.OneDeviceStrategy("CPU:0"),
        lambda: tf.distribute.MirroredStrategy(["CPU:0"], tf.distribute.ReductionToOneDevice()),
    ],
    ids=["one_device", "mirrored"],
)
def test_variables_of_a_strategy_and_plain_ones_read_each_other(tmp_path, strategy):
    with strategy().scope():
        in_scope = model(1)
    plain = model(2)
    save(tmp_path, in_scope, 1)
    checkpoint.restore(newest(tmp_path), plain)
    assert values(plain) == values(in_scope) == values(model(1))

    save(tmp_path, model(3), 2)
    checkpoint.restore(newest(tmp_path), in_scope)
    assert values(in_scope) == values(model(3))


def run_script(script: str, *arguments: object) -> None:
    """In a process of its own: TensorFlow's devices, limits and deaths can't be had in this one."""
    command = [sys.executable, "-c", script, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-3000:]


TWO_REPLICAS_AND_A_FULL_DISK = """
import resource, sys
from pathlib import Path
import tensorflow as tf
from core import checkpoint
from core.errors import CheckpointError

directory = Path(sys.argv[1])
cpu, = tf.config.list_physical_devices("CPU")
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"], tf.distribute.ReductionToOneDevice())
with strategy.scope():
    w = tf.Variable(tf.range(1000.0), aggregation=tf.VariableAggregation.NONE)
checkpoint.save(directory, {"w": w}, step=1, examples=1, config_hash="")
w.assign(tf.zeros([1000]))
plain = tf.Variable(tf.zeros([1000]))
manifest = checkpoint.newest(directory, warn=sys.exit)
checkpoint.restore(manifest, {"w": w})
checkpoint.restore(manifest, {"w": plain})
replicas = strategy.experimental_local_results(w)
assert len(replicas) == 2 and replicas[1].device != replicas[0].device
for v in (*replicas, plain):
    assert v.numpy().tolist() == list(range(1000)), v

resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))  # no file may grow beyond: the disk is full
try:
    checkpoint.save(directory, {"w": w}, step=2, examples=2, config_hash="")
except CheckpointError as error:
    assert str(directory) in str(error) and "step 2" in str(error) and "--workdir" in str(error), error
else:
    sys.exit("a checkpoint was written to a full disk")
assert [path.name for path in directory.iterdir()] == ["step-000000001"], list(directory.iterdir())
assert checkpoint.newest(directory, warn=sys.exit).step == 1
"""


def test_two_replicas_and_a_full_disk(tmp_path):
    run_script(TWO_REPLICAS_AND_A_FULL_DISK, tmp_path)


# --- Keeping, replacing, cleaning up ---------------------------------------------------------------------------------


def test_keeps_the_newest(tmp_path):
    for step in (5, 10, 15, 20):
        save(tmp_path, model(), step, keep=2)
    assert names(tmp_path) == ["step-000000015", "step-000000020"]


def test_keeps_what_is_later_than_the_step_saved(tmp_path):
    save(tmp_path, model(), 30)
    for step in (10, 20):
        save(tmp_path, model(), step, keep=1)
    assert names(tmp_path) == ["step-000000020", "step-000000030"]


def test_steps_are_numbers_not_text(tmp_path):
    for step in (999_999_999, 1_000_000_000):
        save(tmp_path, model(), step)
    assert newest(tmp_path).step == 1_000_000_000


def test_replaces_the_same_step(tmp_path):
    save(tmp_path, model(1), 5)
    save(tmp_path, model(2), 5)
    live = model(3)
    checkpoint.restore(newest(tmp_path), live)
    assert values(live) == values(model(2))
    assert names(tmp_path) == ["step-000000005"]


def test_a_checkpoint_about_to_be_replaced_still_counts(tmp_path):
    path = save(tmp_path, model(1), 5)
    path.rename(path.with_name(path.name + ".replaced"))  # killed between two renames
    assert newest(tmp_path).step == 5
    save(tmp_path, model(2), 6)
    assert names(tmp_path) == ["step-000000005.replaced", "step-000000006"]
    save(tmp_path, model(2), 5)
    assert names(tmp_path) == ["step-000000005", "step-000000006"]


def test_leftovers_of_killed_runs_are_not_checkpoints_and_go(tmp_path):
    save(tmp_path, model(), 5)
    for name in (".tmp-step-000000009", ".tmp-removed-step-000000001"):
        (tmp_path / name).mkdir()
        (tmp_path / name / DATA).write_bytes(b"half")
    assert newest(tmp_path).step == 5
    save(tmp_path, model(), 9)
    assert names(tmp_path) == ["step-000000005", "step-000000009"]


KILLS = """
import hashlib, itertools, os, random, shutil, signal, struct, sys, time
from pathlib import Path
import tensorflow as tf
from core import checkpoint

def save(directory, step, value, keep):
    w = {"w": tf.Variable(value, dtype=tf.int32)}
    checkpoint.save(directory, w, step=step, examples=step, config_hash="", keep=keep)

def found(directory):
    manifest = checkpoint.newest(directory, warn=sys.exit)
    return manifest and (manifest.step, manifest.variables["w"].sha256)

def sha(value):
    return hashlib.sha256(struct.pack("<i", value)).hexdigest()

def in_child(work):
    # This process never runs a TensorFlow op, so its children may.
    if pid := os.fork():
        return pid
    work()
    os._exit(0)

def killed(pid):
    return os.WIFSIGNALED(os.waitpid(pid, 0)[1])

def die_before_call(number):
    calls = itertools.count()
    def deadly(function):
        def call(*arguments, **options):
            if next(calls) == number:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*arguments, **options)
        return call
    for name in ("mkdir", "fsync", "rename", "rmdir", "unlink"):
        setattr(os, name, deadly(getattr(os, name)))

root = Path(sys.argv[1])

def prepare():
    save(root / "before", 1, 10, keep=2)
    save(root / "before", 2, 20, keep=2)
assert not killed(in_child(prepare))

# Before each call that changes the directory, while step 2 is replaced and step 1 removed.
seen = set()
for number in itertools.count():
    directory = root / str(number)
    shutil.copytree(root / "before", directory)
    def work():
        die_before_call(number)
        save(directory, 2, 30, keep=1)
    died = killed(in_child(work))
    seen.add(found(directory))
    assert all(len(list(path.iterdir())) == 3 for path in directory.glob("step-*")), number  # none is half removed
    if not died:
        break
assert number > 10 and seen == {(2, sha(20)), (2, sha(30))}, (number, seen)
assert found(directory) == (2, sha(30)) and len(list(directory.iterdir())) == 1
# The next run clears up whatever was left half done.
assert not killed(in_child(lambda: [save(root / str(n), 3, 40, keep=1) for n in range(number)]))
for n in range(number):
    assert [path.name for path in (root / str(n)).iterdir()] == ["step-000000003"], n

# And at any moment at all.
directory = root / "any"
def save_on():
    first = (found(directory) or (0,))[0]
    for step in itertools.count(first + 1):
        save(directory, step, step, keep=1)
last = 0
for seed in range(4):
    pid = in_child(save_on)
    while (found(directory) or (0,))[0] == last:
        time.sleep(0.01)
    time.sleep(random.Random(seed).uniform(0.0, 0.1))
    os.kill(pid, signal.SIGKILL)
    assert killed(pid)
    step, digest = found(directory)
    assert step > last and digest == sha(step)
    last = step
"""


def test_a_kill_at_any_moment_leaves_a_whole_checkpoint(tmp_path):
    run_script(KILLS, tmp_path)


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
    # The run goes on from 10, and its own step 20 takes the damaged one's place.
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
    file_sha256 = checkpoint._file_sha256

    def overtaken(file: Path) -> str:
        monkeypatch.setattr(checkpoint, "_file_sha256", file_sha256)
        save(tmp_path, model(), 20, keep=1)
        return file_sha256(file)

    monkeypatch.setattr(checkpoint, "_file_sha256", overtaken)
    assert newest(tmp_path).step == 20


# --- What doesn't fit ------------------------------------------------------------------------------------------------


def test_misfits_are_told_in_a_table(tmp_path):
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
    assert 'partial=["net/0/b"]' in str(caught.value)
    assert values(live) == before


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
    for file in (DATA, INDEX):  # exchanged after `newest` looked: TensorFlow's own check sums are right
        (manifest.path / file).write_bytes((other / file).read_bytes())
    with pytest.raises(CheckpointError, match="`w` came out with other bytes"):
        checkpoint.restore(manifest, {"w": tf.Variable(0.0)})


@pytest.mark.parametrize("damage", [flip_data, truncate, lose_data, flip_index], ids=lambda damage: damage.__name__)
def test_damage_after_the_look_is_an_error(tmp_path, damage):
    save(tmp_path, model(1), 10)
    manifest = newest(tmp_path)
    damage(manifest.path)
    with pytest.raises(CheckpointError, match="step-000000010"):
        checkpoint.restore(manifest, model(2))


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
