"""Refusals of the command, with one paragraph and the documented exit code, and resuming from a workdir."""

import fcntl
import json
import re
import shutil
import textwrap

import numpy as np
import pytest

from tests.commands import CHECKOUT, CONFIGS, fork_server, one_paragraph, passed, refused, run, run_process
from tests.trainers.command_lab import gin, write_task
from trainers.process.standard_streams import log_name

LINEAR = f"--gin_file={CONFIGS / 'digits_linear.gin'}"
INTERVALS = ("chunk_steps", "log_every", "checkpoint_every")
SHORT = [f"--gin_param=Trainer.{each}" for each in ("steps = 20", *(f"{n} = 10" for n in INTERVALS))]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder with a run of 20 steps, with checkpoints of steps 10 and 20."""
    folder = tmp_path_factory.mktemp("trained")
    assert run(LINEAR, *SHORT, cwd=folder).returncode == 0
    return folder


@pytest.fixture
def finished(trained, tmp_path):
    """A copy of the run's folder."""
    return shutil.copytree(trained / "runs" / "digits_linear", tmp_path / "runs" / "digits_linear")


def test_unknown_mode(tmp_path):
    refused(LINEAR, "--mode=trian", cwd=tmp_path, exit_code=2, says=["Did you mean `train`?"], run=run_process)


def test_log_lines_are_seen_while_tensorflows_are_not(tmp_path):
    logs = "from absl import logging; logging.debug('quiet'); logging.info('loud'); import os; os.write(2, b'native')"
    done = passed(write_task(tmp_path, outside=logs), cwd=tmp_path)
    assert re.fullmatch(r"I.* mine\.py:\d+\] loud\n", done.stderr)
    log = (tmp_path / "runs" / "mine" / "native_stderr.log").read_text()
    assert "native" in log
    assert "loud" not in log


def test_no_such_gin_file(tmp_path):
    gin(tmp_path, "", "digits_mpl.gin")
    refused(
        "--gin_file=digits_mlp.gin", cwd=tmp_path, exit_code=2, says=["digits_mlp.gin", "digits_mpl.gin", str(tmp_path)]
    )


# Lines of a gin file after `digits_linear`, and words of the error with exit code 2: some for each place that checks
# a configuration. `gin_audit` and `test_settings.py` hold the others.
REFUSED = {
    "required parameter": (
        "Experiment.task = @MlpClassifier\nMlpClassifier.optimizer = @sgd()",
        ["MlpClassifier.sizes"],
    ),
    "unknown parameter": ("Trainer.step = 3", ["`step`", "`steps`", "mine.gin:1"]),
    "binding that nothing uses": ("adamw.weight_decay = 0.1", ["adamw.weight_decay", "mine.gin:1"]),
    "wrong type": ("Trainer.steps = 'many'", ["Trainer.steps", "'many'", "int"]),
    "batch that doesn't divide": ("Trainer.microbatches = 7", ["global_batch_size", "64", "63"]),
    "negative rate": ("sgd.learning_rate = -0.1", ["learning_rate", "-0.1"]),
    "no such device": (
        "Experiment.strategy = @one_device()\none_device.device = 'TPU:7'",
        ["one_device.device", "TPU:7"],
    ),
    "million replicas": ("Experiment.strategy = @mirrored()\nmirrored.replicas = 1000000", ["1000000", "256"]),
    "large seed": ("Experiment.seed = 18446744073709551616", ["`Experiment.seed`", "less than 2 ** 62"]),
    "large evaluation": (
        "Evaluator.global_batch_size = 9223372036854775808",
        ["`Evaluator.global_batch_size`", "at most"],
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_configuration_mistakes(name, tmp_path):
    text, says = REFUSED[name]
    refused(LINEAR, gin(tmp_path, text), cwd=tmp_path, exit_code=2, says=says)
    assert not (tmp_path / "runs" / "digits_linear" / "checkpoints").exists()


def test_batch_that_finds_no_memory(tmp_path):
    flag = gin(tmp_path, "Trainer.global_batch_size = 2147483647\nTrainer.log_every = 1")
    refused(LINEAR, flag, cwd=tmp_path, exit_code=8, says=["Trainer.global_batch_size", "GiB"])


@pytest.mark.long
def test_other_configuration_in_the_workdir(finished, tmp_path):
    changed = (LINEAR, *SHORT, "--gin_param=sgd.momentum = 0.5")
    says = ["- sgd.momentum = 0.9", "+ sgd.momentum = 0.5", "--allow_config_change"]
    refused(*changed, cwd=tmp_path, exit_code=2, says=says)
    assert run(*changed, "--gin_param=Trainer.steps = 30", "--allow_config_change", cwd=tmp_path).returncode == 0
    # Another architecture can't resume from this checkpoint, whatever is allowed.
    mlp = f"--gin_file={CONFIGS / 'digits_mlp.gin'}"
    says = ["net/w", "net/layers/0/w"]
    refused(mlp, "--workdir=runs/digits_linear", "--allow_config_change", cwd=tmp_path, exit_code=5, says=says)


def test_workdir_that_cant_be_written(tmp_path):
    (tmp_path / "file").write_text("in the way")
    refused(LINEAR, "--workdir=file/run", cwd=tmp_path, exit_code=2, says=["file/run", "--workdir"])


def test_damaged_checkpoints(finished, tmp_path):
    folder = finished / "checkpoints"
    newest, older = folder / "step-000000020", folder / "step-000000010"
    data = next(newest.glob("*.data-*"))
    data.write_bytes(data.read_bytes()[:-1])
    done = passed(LINEAR, *SHORT, cwd=tmp_path)
    assert "step-000000020" in done.stdout
    assert "resuming from step 10" in done.stdout
    for manifest in folder.glob("*/manifest.json"):
        manifest.write_text("{")
    assert older.exists()
    refused(LINEAR, *SHORT, cwd=tmp_path, exit_code=5, says=["checkpoints", "step-000000010"])


def test_label_out_of_range(tmp_path):
    labels = np.arange(20) % 10
    labels[13] = 10
    np.savez(tmp_path / "labels.npz", image=np.zeros([20, 8, 8, 1], "uint8"), label=labels)
    flags = ("--gin_param=Experiment.train_source = @npz()", "--gin_param=npz.path = 'labels.npz'")
    refused(LINEAR, *flags, cwd=tmp_path, exit_code=4, says=["`label`", "13", "10", "LinearClassifier"])


def test_label_out_of_range_found_while_training(tmp_path):
    """A source that can't check all its labels beforehand."""
    (tmp_path / "streamed.py").write_text(
        textwrap.dedent("""
        import gin
        import tensorflow as tf
        from core.data import Source

        @gin.configurable
        class Streamed(Source):
            def __init__(self):
                super().__init__("streamed", size=64, place="a stream")

            @property
            def spec(self):
                return {"image": tf.TensorSpec([8, 8, 1], tf.float32), "label": tf.TensorSpec([], tf.int32)}

            def gather(self, indices):
                return {"image": tf.zeros([tf.size(indices), 8, 8, 1]), "label": tf.cast(indices // 5, tf.int32)}
        """)
    )
    flag = gin(tmp_path, "import streamed\nExperiment.train_source = @Streamed()")
    refused(LINEAR, flag, cwd=tmp_path, exit_code=4, says=["`streamed`", "0 to 9"])


def test_mnist_file_missing(tmp_path):
    (tmp_path / "mnist").mkdir()
    flag = f"--gin_file={CONFIGS / 'mnist_linear.gin'}"
    says = ["train-images-idx3-ubyte", str(tmp_path / "mnist"), "LeCun"]
    refused(flag, cwd=tmp_path, exit_code=4, says=says)


def test_models_folder_of_the_user(tmp_path):
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "__init__.py").write_text("")
    says = [str(tmp_path / "models"), str(CHECKOUT / "models")]
    refused(LINEAR, cwd=tmp_path, exit_code=2, says=says, run=run_process)  # a fork has imported ours


@pytest.mark.parametrize(
    ("job", "others", "file"),
    [("worker", {}, "multi_worker"), ("chief", {"chief": ["[::1]:3"], "ps": ["[::1]:4"]}, "parameter_server")],
)
def test_strategy_of_one_process_is_refused_in_each_of_several(job, others, file, tmp_path):
    role = {"cluster": {"worker": ["[::1]:1", "[::1]:2"], **others}, "job": job, "index": 0}
    begun = {"module": "tests.served.role", "arguments": role}
    done = fork_server().run(LINEAR, cwd=tmp_path, timeout=60, before=begun)
    assert done.returncode == 2
    one_paragraph(done.stderr, "its strategy is for one", f"configs/runtime/{file}.gin", "unset `TF_CONFIG`")


def test_two_runs_in_one_workdir(tmp_path):
    (tmp_path / "busy").mkdir()
    with open(tmp_path / "busy" / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        refused(LINEAR, "--workdir=busy", cwd=tmp_path, exit_code=2, says=["busy", "another run"])


def test_eager_runs_the_step_function_without_tracing(tmp_path):
    flag = write_task(tmp_path, loss="print('mean', float(tf.reduce_mean(y))); return Loss(tf.square(y))")
    done = passed(flag, "--eager", cwd=tmp_path)
    assert "mean 0." in done.stdout
    traced = run(flag, cwd=tmp_path)
    assert traced.returncode == 1, traced.stderr
    assert "mine.py" in traced.stderr
    assert "run one step with `--eager`" in traced.stderr


def test_run_killed_before_its_result_gets_the_result(finished, tmp_path):
    (finished / "result.json").unlink()
    done = passed(LINEAR, *SHORT, cwd=tmp_path)
    assert "already finished" in done.stdout
    assert json.loads((finished / "result.json").read_text())["evaluation"]["accuracy"] > 0


def test_verbose_shows_the_traceback(tmp_path):
    done = run(write_task(tmp_path, loss="return tf.square(y)"), "--verbose", cwd=tmp_path)
    assert done.returncode == 2
    assert "Traceback" in done.stderr


@pytest.mark.parametrize(
    ("kind", "index", "servers", "name"),
    [
        ("chief", 0, [], "native_stderr.log"),
        ("worker", 0, [], "native_stderr_1.log"),
        ("worker", 1, [], "native_stderr_2.log"),
        ("chief", 0, ["d:1"], "native_stderr.log"),
        ("ps", 0, ["d:1"], "native_stderr_ps_0.log"),
        ("worker", 0, ["d:1"], "native_stderr_worker_0.log"),
    ],
)
def test_log_of_each_worker(kind, index, servers, name, monkeypatch):
    cluster = {"chief": ["a:1"], "worker": ["b:1", "c:1"], **({"ps": servers} if servers else {})}
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": cluster, "task": {"type": kind, "index": index}}))
    assert log_name() == name


@pytest.mark.parametrize(("rank", "name"), [("0", "native_stderr.log"), ("1", "native_stderr_rank_1.log")])
def test_under_slurm_logs_are_named_by_rank(rank, name, monkeypatch):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    monkeypatch.setenv("SLURM_PROCID", rank)
    assert log_name() == name


@pytest.mark.parametrize(
    ("module", "package", "error"),
    [
        ("absl", "absl-py", "ImportError"),
        ("rich", "rich", "RuntimeError"),
        ("tensorboard", "tensorboard", "ImportError"),
        ("gin", "gin-config", "RuntimeError"),
        ("numpy", "numpy", "ImportError"),
    ],
)
def test_package_that_cant_be_imported_is_named(module, package, error, tmp_path):
    (tmp_path / module).mkdir()
    (tmp_path / module / "__init__.py").write_text(f"raise {error}('torn')")
    says = [f"the package `{package}`", "torn", "pip install"]
    refused(LINEAR, cwd=tmp_path, exit_code=2, says=says, run=run_process)
