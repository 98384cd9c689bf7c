"""Signals to workers during their start and training, at any moment: none is lost, and no worker hangs."""

import json
import signal
import subprocess

import pytest
from test_many_workers import FLAGS, QUICK, SHORT, saved

from core.checkpoint import newest
from tests import ports
from tests.commands import environment, launch, passed
from tests.trainers.launch.launch_lab import planted
from trainers.launch.commands import free_ports

# Another process sends it: TensorFlow holds Python's GIL while it waits for workers, so no thread here runs.
MOMENTS = """
import json, os, subprocess, time
import tensorflow as tf

of, number, to, delay = json.loads(os.environ["SENT"])
if json.loads(os.environ["TF_CONFIG"])["task"]["index"] == of:
    whole = tf.distribute.MultiWorkerMirroredStrategy
    def observed(*args, **kwargs):
        tf.distribute.MultiWorkerMirroredStrategy = whole
        pid = os.getppid() if to == "launch" else os.getpid()
        if delay is None:  # when TensorFlow has taken signals for its own, and nobody has taken them back
            strategy = whole(*args, **kwargs)
            os.kill(pid, number)
            time.sleep(0.3)  # any thread that hears it takes it by then
            return strategy
        subprocess.Popen(["sh", "-c", f"sleep {delay}; kill -{number} {pid}"])
        return whole(*args, **kwargs)
    tf.distribute.MultiWorkerMirroredStrategy = observed
"""


@pytest.fixture
def begun(tmp_path, python):
    """Starts two workers, under `launch` or by hand, and sends one a signal while TensorFlow connects."""
    (tmp_path / "moments.py").write_text(MOMENTS)
    (tmp_path / "moments.gin").write_text("import moments\n")
    flags = [*FLAGS, *SHORT, "--gin_file=moments.gin", "--workdir=run"]
    processes = []

    def begin(of, number, to, delay):
        variables = {**environment(), "SENT": json.dumps([of, int(number), to, delay])}
        if to == "launch":
            starts = [(["trainers.launch", "--workers=2", *ports.flags(), "--"], {})]
        else:
            cluster = {"worker": [f"127.0.0.1:{port}" for port in free_ports(2)]}
            config = [{"cluster": cluster, "task": {"type": "worker", "index": i}} for i in range(2)]
            starts = [(["trainers.main"], {"TF_CONFIG": json.dumps(each)}) for each in config]
        for module, more in starts:
            process = subprocess.Popen(
                [*python, "-m", *module, *flags],
                cwd=tmp_path, env={**variables, **more}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            )  # fmt: skip
            processes.append(process)
        return processes

    yield begin
    for process in processes:
        process.kill()
        process.communicate()


def ends(processes):
    """Returns the workers' stderr, and their exit codes."""
    said = [process.communicate(timeout=120)[1] for process in processes]
    assert "Traceback" not in "".join(said)
    return said, [process.returncode for process in processes]


@pytest.mark.long
def test_a_signal_to_launch_while_workers_begin_ends_them_all_with_75(begun, tmp_path):
    (said,), codes = ends(begun(0, signal.SIGTERM, "launch", 0.1))
    assert codes == [75], said
    assert "error: stopped by SIGTERM. The same command resumes" in said
    assert "hung" not in said
    assert newest(tmp_path / "run" / "checkpoints", warn=print) is None


@pytest.mark.long
@pytest.mark.parametrize("delay", [0.1, None])
def test_sigterm_while_tensorflow_connects_is_handled_and_forwarded(delay, begun):
    said, codes = ends(begun(1, signal.SIGTERM, "itself", delay))
    assert codes == [6, 75], said
    assert said[1].startswith("error: stopped by SIGTERM before the first step")
    assert ") ended: it was stopped by a signal. Start all workers again" in said[0]


@pytest.mark.waits
@pytest.mark.long
@pytest.mark.parametrize("lost", [0, 1])
def test_a_worker_that_dies_while_tensorflow_connects_is_not_waited_for_without_end(lost, begun):
    said, codes = ends(begun(lost, signal.SIGKILL, "itself", 0.0))
    assert codes[lost] == -signal.SIGKILL
    assert codes[1 - lost] == 6, said
    assert f"worker {lost} (" in said[1 - lost]


@pytest.mark.long
def test_slurms_warning_to_one_worker_saves_them_all_and_changes_no_bit(tmp_path):
    here = "run.step == 50 and not is_chief() and run.workdir.path.name == 'warned'"
    flags = [*FLAGS, *QUICK, planted(tmp_path, f"if {here}: os.kill(os.getpid(), signal.SIGUSR1)", every=50)]
    flags += ["--gin_param=Trainer.steps = 150"]
    flags += ["--gin_param=Trainer.checkpoint_every = None", "--gin_param=Trainer.chunk_steps = 50"]
    for name in ("warned", "not"):
        done = passed("--workers=2", "--", *flags, f"--workdir={name}", cwd=tmp_path, run=launch)
        assert done.stdout.count("SIGUSR1: saved as `step-000000100`, and going on") == (name == "warned")
    found = sorted(x.name for x in (tmp_path / "warned" / "checkpoints").glob("step-*"))
    assert found == ["step-000000100", "step-000000150"]
    assert saved(tmp_path / "warned")[1] == saved(tmp_path / "not")[1]


@pytest.mark.long
def test_the_chiefs_clock_saves_all_workers(tmp_path):
    settings = ("steps = 150", "checkpoint_every = None", "checkpoint_every_minutes = 1e-9", "chunk_steps = 50")
    flags = [*FLAGS, *QUICK, *(f"--gin_param=Trainer.{each}" for each in settings), "--workdir=run"]
    passed("--workers=2", "--", *flags, cwd=tmp_path, run=launch)
    found = sorted(path.name for path in (tmp_path / "run" / "checkpoints").glob("step-*"))
    assert found == ["step-000000050", "step-000000100", "step-000000150"]
