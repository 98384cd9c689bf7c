"""Several workers as several processes: one process's numbers, and clear ends if one of them fails."""

import json
import re
import signal
import subprocess

import numpy as np
import pytest
import tensorflow as tf

from core import checkpoint
from tests.commands import CONFIGS, environment, fork_server, launch, passed
from tests.trainers.launch.launch_lab import Forked, planted
from trainers.launch.commands import free_ports

LINEAR, LOCAL, MIRRORED, WORKERS = (
    f"--gin_file={CONFIGS / name}.gin"
    for name in ("digits_linear", "runtime/local_steps", "runtime/mirrored", "runtime/multi_worker")
)
FLAGS = [LINEAR, WORKERS, *(f"--gin_param=Trainer.{each} = None" for each in ("evaluate_every", "log_every"))]
SHORT = ["--gin_param=Trainer.steps = 200", "--gin_param=Trainer.checkpoint_every = 50"]
LONG = ["--gin_param=Trainer.steps = 100000", "--gin_param=Trainer.checkpoint_every = 50"]
QUICK = ["--gin_param=multi_worker.peer_timeout = 4.0", "--gin_param=multi_worker.meeting_deadline = 60.0"]


def saved(workdir):
    manifest = checkpoint.newest(workdir / "checkpoints", warn=print)
    return manifest, {path: v.sha256 for path, v in manifest.variables.items()}


def values(manifest):
    reader = tf.train.load_checkpoint(manifest.path / "variables")
    return {key: reader.get_tensor(key) for key in reader.get_variable_to_shape_map() if "VARIABLE_VALUE" in key}


@pytest.mark.long
def test_workers_end_where_one_process_does(tmp_path):
    # Softmax regression has no kinks, at which rounding would grow to more than 1e-5 in so many steps.
    flags = [LINEAR, "--gin_param=Evaluator.global_batch_size = 7"]
    flags += [f"--gin_param=Trainer.{x}" for x in ("steps = 40", "checkpoint_every = 20", "global_batch_size = 48")]
    done = passed("--workers=2", "--", *flags, WORKERS, "--workdir=many", cwd=tmp_path, run=launch)
    passed(*flags, "--workdir=one", cwd=tmp_path)
    one, many = (values(saved(tmp_path / name)[0]) for name in ("one", "many"))
    for key, value in one.items():
        if "figures" not in key:
            np.testing.assert_allclose(many[key], value, rtol=1e-5, atol=1e-5, err_msg=key)
    results = [json.loads((tmp_path / name / "result.json").read_text()) for name in ("one", "many")]
    assert results[0]["evaluation"]["accuracy"] == pytest.approx(results[1]["evaluation"]["accuracy"], abs=1e-6)
    # Only the chief prints metrics, and each line names its worker.
    assert len(re.findall(r"\[worker 0\] finished", done.stdout)) == 1
    assert "[worker 1] step" not in done.stdout


@pytest.mark.long
def test_stop_that_one_worker_asks_for_stops_all_with_its_reason(tmp_path):
    enough = "if not is_chief() and run.step == 100: run.stop('the second worker has seen enough')"
    flags = [*FLAGS, planted(tmp_path, enough, every=50), *LONG, "--workdir=run"]
    passed("--workers=2", "--", *flags, cwd=tmp_path, run=launch)
    manifest, _ = saved(tmp_path / "run")
    assert (manifest.step, manifest.extra["stop"]["reason"]) == (100, "the second worker has seen enough")
    assert json.loads((tmp_path / "run" / "result.json").read_text())["reason"].endswith("seen enough")


def start(cwd, *flags):
    """Returns a launched run, once it has saved something, and its workers' processes."""
    process = Forked(cwd, *flags)
    return process, process.workers


@pytest.mark.parametrize(
    ("number", "how"),
    [
        (signal.SIGKILL, "was killed"),
        pytest.param(signal.SIGSTOP, "hasn't been heard of", marks=[pytest.mark.long, pytest.mark.waits]),
    ],
)
def test_a_lost_worker_ends_the_run_and_is_named(number, how, tmp_path):
    lost = f"if not is_chief() and run.step == 100: os.kill(os.getpid(), {int(number)})"
    flags = [*FLAGS, planted(tmp_path, lost, every=50), *SHORT, *QUICK, "--workdir=run"]
    done = launch("--workers=2", "--deadline=20", "--", *flags, cwd=tmp_path)
    assert done.returncode == 6, done.stdout + done.stderr
    named = [line for line in done.stderr.splitlines() if "[worker 0] error: worker 1" in line]
    assert named, done.stderr
    assert how in named[0]


@pytest.mark.long
def test_a_signal_to_one_worker_stops_all_with_everything_saved(tmp_path):
    process, _ = start(tmp_path, "--", *FLAGS, *LONG, *QUICK, "--workdir=run")
    process.terminate()
    said, _ = process.communicate(timeout=120)
    assert process.returncode == 75, said
    assert json.loads((tmp_path / "run" / "result.json").read_text())["exit_code"] == 75


def place(index, ports):
    """Returns a worker's TF_CONFIG."""
    return {"cluster": {"worker": [f"127.0.0.1:{port}" for port in ports]}, "task": {"type": "worker", "index": index}}


def worker(python, cwd, index, ports, *flags):
    return subprocess.Popen(
        [*python, "-m", "trainers.main", *FLAGS, *SHORT, "--workdir=run", *flags],
        cwd=cwd,
        env={**environment(), "TF_CONFIG": json.dumps(place(index, ports))},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.mark.long
def test_workers_of_different_configurations_refuse_to_start(python, tmp_path):
    ports = free_ports(2)
    pair = [worker(python, tmp_path, i, ports, f"--gin_param=Trainer.microbatches = {i + 1}") for i in range(2)]
    for process in pair:
        said, _ = process.communicate(timeout=120)
        assert process.returncode == 2, said
        assert "`configuration`" in said


@pytest.mark.long
def test_workers_with_the_strategy_of_one_process_are_refused(tmp_path):
    done = launch("--workers=2", "--", LINEAR, "--workdir=run", cwd=tmp_path)
    assert done.returncode == 2, done.stdout + done.stderr
    assert "add `--gin_file=configs/runtime/multi_worker.gin`" in done.stderr


def test_peer_that_never_comes_is_named(tmp_path):
    ports = free_ports(2)
    flags = [*FLAGS, *SHORT, "--workdir=run", "--gin_param=multi_worker.meeting_deadline = 1.0"]
    variables = {"TF_CONFIG": json.dumps(place(0, ports))}
    before = {"module": "tests.trainers.launch.launch_lab", "arguments": variables}
    done = fork_server().run(*flags, cwd=tmp_path, timeout=120, before=before)
    assert done.returncode == 6, done.stderr
    assert f"error: worker 1 (127.0.0.1:{ports[1]}) didn't come within 1 s" in done.stderr


@pytest.mark.long
def test_steps_leave_no_threads_behind(tmp_path):
    count = "print('threads:', len(os.listdir('/proc/self/task')), flush=True)"
    flags = [*FLAGS, planted(tmp_path, count, every=50), "--gin_param=Trainer.steps = 200", "--workdir=run"]
    done = passed("--workers=2", "--", *flags, cwd=tmp_path, run=launch)
    for worker in range(2):
        counts = [int(x) for x in re.findall(rf"\[worker {worker}\] threads: (\d+)", done.stdout)]
        assert len(counts) == 4
        assert counts[-1] < counts[0] + 50  # 150 steps, of one collective each or more


@pytest.mark.long
def test_workers_end_where_the_replicas_of_one_process_do(tmp_path):
    """A worker dies within a round, and all resume from the last checkpoint."""
    flags = [
        LINEAR,
        LOCAL,
        *FLAGS[2:],
        *(f"--gin_param=Trainer.{x}" for x in ("steps = 120", "checkpoint_every = 40", "global_batch_size = 48")),
    ]
    passed(*flags, MIRRORED, "--workdir=one", cwd=tmp_path)
    killed = launch("--workers=2", "--", *flags, WORKERS, "--workdir=many", "--kill_after_step=80", cwd=tmp_path)
    assert killed.returncode != 0
    done = passed("--workers=2", "--", *flags, WORKERS, "--workdir=many", cwd=tmp_path, run=launch)
    assert "resuming from step" in done.stdout
    one, many = (values(saved(tmp_path / name)[0]) for name in ("one", "many"))
    assert one.keys() == many.keys()
    assert any("outer" in key for key in one)
    for key, value in one.items():
        assert many[key] == pytest.approx(value, rel=1e-5, abs=1e-5), key


QUIET = [f"Trainer.{each} = None" for each in ("evaluate_every", "log_every")]


@pytest.mark.long
def test_workers_end_with_the_code_of_the_one_that_failed_and_resume(tmp_path):
    settings = [*QUIET, *(f"Trainer.{each}" for each in ("steps = 30", "chunk_steps = 10", "checkpoint_every = 10"))]
    body = "if run.step == 20 and not is_chief(): raise SystemExit(0)"
    flags = ["--", LINEAR, WORKERS, planted(tmp_path, body, every=10, settings=settings), "--workdir=a[1]*?"]
    workdir = tmp_path / "a[1]*?"
    done = launch("--workers=2", *flags, cwd=tmp_path)
    assert done.returncode == 1, (done.stdout, done.stderr)
    assert "`sys.exit(0)` was called" in done.stdout + done.stderr
    assert "ended with 1" in done.stderr
    result = json.loads((workdir / "result.json").read_text())
    assert (result["exit_code"], result["step"]) == (6, 20)  # the chief's own end: it has lost the other
    planted(tmp_path, "pass", every=10, settings=settings)
    done = passed("--workers=2", *flags, cwd=tmp_path, run=launch)
    assert "resuming from step 10" in done.stdout
    assert json.loads((workdir / "result.json").read_text())["exit_code"] == 0
    assert "/proc/self/fd" not in done.stdout + done.stderr


@pytest.mark.long
def test_hanging_worker_is_named_with_its_section(tmp_path):
    settings = [*QUIET, "Trainer.steps = 20", "Trainer.chunk_steps = 10", "Trainer.section_deadlines = {'hook': 8}"]
    hangs = planted(tmp_path, "if not is_chief(): time.sleep(600)", every=10, settings=settings)
    done = launch("--workers=2", "--", LINEAR, WORKERS, hangs, "--workdir=run", cwd=tmp_path)
    assert done.returncode == 6, done.stdout + done.stderr
    said = done.stdout + done.stderr
    assert "the hook `Planted` has shown no progress for 8 s" in said
    stacks = [(tmp_path / "run" / name).read_text() for name in ("stacks.txt", "stacks_1.txt")]
    assert "while worker 1" in stacks[0]
    assert "was at the hook `Planted`" in stacks[0]
    assert "the hook `Planted` has shown no progress" in stacks[1]
