"""Checkpoints are saved, restored, replaced and cleaned up, through kills and a full disk too."""

import hashlib
import json

import pytest
import tensorflow as tf
from checkpoint_lab import DATA, INDEX, model, names, newest, save, values

from core import checkpoint
from core.errors import CheckpointError
from core.testing import on_virtual_cpus
from tests.commands import fork_server
from tests.core.telemetry.test_full_disk import most

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
    assert manifest.extra == {**extra, "kept": {"because": ["last"], "measured": {}}}
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
    assert manifest["versions"].keys() == {"tapeloop", "tensorflow", "gin-config", "numpy", "python"}
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


def test_two_replicas_and_a_full_disk(tmp_path):
    strategy = on_virtual_cpus(2)
    with strategy.scope():
        w = tf.Variable(tf.range(1000.0), aggregation=tf.VariableAggregation.NONE)
    save(tmp_path, {"w": w}, 1)
    w.assign(tf.zeros([1000]))
    plain = tf.Variable(tf.zeros([1000]))
    for v in (w, plain):
        checkpoint.restore(newest(tmp_path), {"w": v})
    replicas = strategy.experimental_local_results(w)
    assert len({v.device for v in replicas}) == 2
    for v in (*replicas, plain):
        assert v.numpy().tolist() == list(range(1000)), v

    with most(1000), pytest.raises(CheckpointError) as error:  # the disk is full
        save(tmp_path, {"w": w}, 2)
    assert all(text in str(error.value) for text in (str(tmp_path), "step 2", "--workdir"))
    assert names(tmp_path) == ["step-000000001"]
    assert newest(tmp_path).step == 1


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
import hashlib, itertools, os, random, signal, struct, subprocess, sys, time
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
    # This process, a fork itself, never runs a TensorFlow op, so its children may.
    if pid := os.fork():
        return pid
    work()
    os._exit(0)

def killed(pid):
    return os.WIFSIGNALED(os.waitpid(pid, 0)[1])

def copy_before_calls(directory):
    # Before each call that changes the directory: a kill would leave as much.
    numbers = itertools.count()
    def copying(function):
        def call(*arguments, **options):
            subprocess.run(["cp", "-r", directory, root / str(next(numbers))], check=True)
            return function(*arguments, **options)
        return call
    for name in ("mkdir", "fsync", "rename", "rmdir", "unlink"):
        setattr(os, name, copying(getattr(os, name)))

root = Path.cwd()

def prepare():
    save(root / "before", 1, 10, keep=2)
    save(root / "before", 2, 20, keep=2)
assert not killed(in_child(prepare))

# While step 2 is replaced and step 1 removed.
def replace():
    copy_before_calls(root / "before")
    save(root / "before", 2, 30, keep=1)
assert not killed(in_child(replace))
number = len(list(root.glob("[0-9]*")))
seen = set()
for n in range(number):
    seen.add(found(root / str(n)))
    assert all(len(list(path.iterdir())) == 3 for path in (root / str(n)).glob("step-*")), n  # none is half removed
assert number > 10 and seen == {(2, sha(20)), (2, sha(30))}, (number, seen)
assert found(root / "before") == (2, sha(30)) and len(list((root / "before").iterdir())) == 1
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
for seed in range(2):
    pid = in_child(save_on)
    while (found(directory) or (0,))[0] == last:
        time.sleep(0.01)  # until the child has saved once
    time.sleep(random.Random(seed).uniform(0.0, 0.1))
    os.kill(pid, signal.SIGKILL)
    assert killed(pid)
    step, digest = found(directory)
    assert step > last and digest == sha(step), (seed, step, last)
    last = step
"""


def test_a_kill_at_any_moment_leaves_a_whole_checkpoint(tmp_path):
    (tmp_path / "kills.py").write_text(KILLS)
    done = fork_server().run(command="kills", cwd=tmp_path, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
