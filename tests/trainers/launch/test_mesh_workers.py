"""Two workers with two devices each form one mesh: one process's bits, and clear ends if one of them fails."""

import json
import os
import re
import signal
import time

import pytest

from core.cluster import joined
from core.errors import ConfigurationError
from core.parallel.mesh import MeshStrategy, mesh
from tests.commands import CONFIGS, launch, passed
from tests.trainers.launch.launch_lab import planted
from tests.trainers.launch.test_many_workers import saved, start

FLAGS = [f"--gin_file={CONFIGS / name}.gin" for name in ("digits_mlp", "runtime/mesh")]
FLAGS += [
    f"--gin_param={binding}"
    for binding in (
        "mesh.layouts = [('net/layers/0/?', '...,model'), ('net/layers/1/w', 'model,-')]",
        "MlpClassifier.optimizer = @sgd()",
        "sgd.learning_rate = 0.1",
        "Trainer.checkpoint_every = 20",
        "Trainer.log_every = 20",
    )
]
EVALUATED, QUIET = ([f"--gin_param=Trainer.evaluate_every = {every}"] for every in (20, None))


def sizes(batch, model):
    return [f"--gin_param=mesh.batch = {batch}", f"--gin_param=mesh.model = {model}"]


def lines(workdir):
    """Returns a run's metrics, without those that the clock measures."""
    clock = ("examples_per_second", "step_seconds", "data_wait")
    found = map(json.loads, (workdir / "metrics.jsonl").read_text().splitlines())
    return [{name: x for name, x in line.items() if name not in clock} for line in found]


@pytest.mark.long
@pytest.mark.parametrize(
    ("plan", "files"), [((2, 2), 1), ((1, 4), 2)], ids=["2x2", "1x4, the model cut across processes"]
)
def test_two_workers_end_where_one_process_does(plan, files, tmp_path):
    flags = [*FLAGS, *EVALUATED, *sizes(*plan), "--gin_param=sgd.momentum = 0.9", "--gin_param=steps = 40"]
    two = passed("--workers=2", "--", *flags, "--workdir=two", cwd=tmp_path, run=launch)
    assert len(list(saved(tmp_path / "two")[0].path.glob("variables.data-*"))) == files  # each wrote its own shards
    passed(*flags, "--workdir=one", cwd=tmp_path)
    found, expected = lines(tmp_path / "two"), lines(tmp_path / "one")
    assert [line.pop("split") for line in found] == [line.pop("split") for line in expected] == ["train", "eval"] * 2
    for mine, theirs in zip(found, expected, strict=True):
        assert mine == pytest.approx(theirs, rel=1e-5)
    (_, bits), (_, others) = saved(tmp_path / "two"), saved(tmp_path / "one")
    assert bits == others
    # Only the chief prints metrics.
    assert len(re.findall(r"\[worker 0\] finished", two.stdout)) == 1
    assert "[worker 1] step" not in two.stdout


@pytest.mark.long
def test_a_killed_worker_ends_the_run_and_is_named(tmp_path):
    flags = [*FLAGS, *QUIET, *sizes(2, 1), "--gin_param=steps = 100000", "--workdir=run"]
    process, workers = start(tmp_path, "--", *flags)
    time.sleep(0.5)  # in a chunk of steps, most likely
    os.kill(workers[0], signal.SIGKILL)
    said, _ = process.communicate(timeout=120)
    assert process.returncode == 6, said
    (error,) = (line for line in said.splitlines() if "[worker 1] error: " in line)
    assert "worker 0" in error
    assert "was killed" in error


@pytest.mark.long
def test_signal_saves_and_stops_both_and_they_resume(tmp_path):
    flags = ["--", *FLAGS, *QUIET, *sizes(1, 2), "--workdir=run", "--gin_param=Trainer.steps = 100000"]
    process, _ = start(tmp_path, *flags)
    process.terminate()
    said, _ = process.communicate(timeout=120)
    assert process.returncode == 75, said
    step = saved(tmp_path / "run")[0].step
    flags[-1] = f"--gin_param=Trainer.steps = {step + 20}"
    on = passed("--workers=2", *flags, cwd=tmp_path, run=launch)
    assert f"resuming from step {step}" in on.stdout
    assert saved(tmp_path / "run")[0].step == step + 20


DRIFT = """
from tensorflow.experimental import dtensor

from core.checkpoint import saves

write_parts = saves.write_parts


def slowly(*arguments):  # step 20 is still being saved when step 40 drifts
    time.sleep(3)
    return write_parts(*arguments)


saves.write_parts = slowly


def drift(run):
    handle = dtensor.unpack(run.experiment.variables["task/net/layers/1/b"].handle)[1]
    with tf.device(handle.device):
        tf.raw_ops.AssignVariableOp(resource=handle, value=tf.ones([10]))
"""


@pytest.mark.long
def test_copy_that_differs_on_one_worker_is_named_by_all(tmp_path):
    drifts = planted(tmp_path, "if not is_chief() and run.step == 40: drift(run)", every=20, outside=DRIFT)
    flags = [*EVALUATED, drifts, "--gin_param=steps = 80", "--workdir=run"]
    done = launch("--workers=2", "--", *FLAGS, *sizes(2, 2), *flags, cwd=tmp_path)
    assert done.returncode == 7, done.stdout + done.stderr
    for worker in range(2):
        assert f"[worker {worker}] error: device 3 of 4 no longer hold what others of the mesh" in done.stderr
    assert "`task/net/layers/1/b` (1 of " in done.stderr
    assert saved(tmp_path / "run")[0].step == 20


TROUBLE = """
from core.checkpoint import write


def killed_after(name):
    real = getattr(write, name)

    def then_killed(*arguments):
        real(*arguments)
        os.kill(os.getpid(), signal.SIGKILL)

    setattr(write, name, then_killed)


def trouble(run):
    run.settle()  # what is to be in trouble is the second checkpoint
    if joined().cluster.index == WORKER:
        ACT
"""


def in_trouble(folder, worker, act):
    """Returns flags of a run in which `act` hits one worker before its second checkpoint, of two files."""
    outside = TROUBLE.replace("WORKER", str(worker)).replace("ACT", act)
    flag = planted(folder, "if run.step == 40: trouble(run)", every=20, outside=outside)
    return [flag, "--gin_param=steps = 60", "--workdir=run"]


@pytest.mark.long
@pytest.mark.parametrize(("lost", "after"), [(1, "write_slices"), (0, "merge")], ids=["a part written", "all joined"])
def test_worker_killed_while_saving_leaves_no_checkpoint_and_the_run_continues(lost, after, tmp_path):
    workdir, trouble = tmp_path / "run", in_trouble(tmp_path, lost, f"killed_after({after!r})")
    done = launch("--workers=2", "--", *FLAGS, *QUIET, *sizes(1, 2), *trouble, cwd=tmp_path)
    assert done.returncode == 6, done.stdout + done.stderr
    assert f"[worker {1 - lost}] error: worker {lost}" in done.stderr
    found = sorted(path.name for path in (workdir / "checkpoints").iterdir())
    assert found == [".tmp-step-000000040", "step-000000020"]
    if lost == 1:
        flags = [FLAGS[0], *FLAGS[3:], *QUIET, "--gin_param=steps = 60", "--workdir=run"]
        on = passed(*flags, cwd=tmp_path)  # on one device
        assert "resuming from step 20" in on.stdout
        assert saved(workdir)[0].step == 60
        assert not list((workdir / "checkpoints").glob(".tmp-*"))


@pytest.mark.long
def test_a_disk_that_is_full_for_one_worker_while_it_saves_is_named_by_all(tmp_path):
    act = "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))"  # no file may grow beyond
    quiet = [*QUIET, "--gin_param=Trainer.log_every = None"]  # nor the one of metrics
    flags = [*FLAGS, *quiet, *sizes(1, 2), *in_trouble(tmp_path, 1, act), "--gin_param=steps = 400"]
    done = launch("--workers=2", "--", *flags, cwd=tmp_path)
    assert done.returncode == 5, done.stdout + done.stderr
    for each in range(2):
        said = [line for line in done.stderr.splitlines() if line.startswith(f"[worker {each}] error: ")]
        assert len(said) == 1, done.stderr
        assert f"could not be written to `{tmp_path}/run/checkpoints`: worker 1: " in said[0]
        assert "File too large" in said[0]
    assert [path.name for path in (tmp_path / "run" / "checkpoints").iterdir()] == ["step-000000020"]


def test_devices_that_workers_cannot_have_as_many_each_of_are_refused_before_they_meet(monkeypatch):
    cluster = {"cluster": {"worker": ["127.0.0.1:1", "127.0.0.1:2"]}, "task": {"type": "worker", "index": 1}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(cluster))
    with pytest.raises(ConfigurationError, match="is 3x1, 3 devices, which 2 workers can't share evenly"):
        MeshStrategy(mesh(batch=3))
    assert joined() is None
