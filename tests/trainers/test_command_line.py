"""What the command refuses: one paragraph and the documented exit code, of each code once from a process of its own."""

import fcntl
import json
import re
import subprocess
import sys
import textwrap

import numpy as np
import pytest
from command_lab import gin, write_task

from tests.commands import CHECKOUT, CONFIGS, environment, refused, run, run_process

LINEAR = f"--gin_file={CONFIGS / 'digits_linear.gin'}"
SHORT = ("--gin_param=Trainer.steps = 20", "--gin_param=Trainer.chunk_steps = 10", "--gin_param=Trainer.log_every = 10")


AT_EXIT = """
import atexit, runpy, sys
atexit.register(lambda: print("tensorflow" in sys.modules, "gin" in sys.modules))
runpy.run_module("trainers.{command}", run_name="__main__", alter_sys=True)
"""


@pytest.mark.parametrize("command", ["main", "launch"])
@pytest.mark.parametrize(("flag", "exit_code"), [("--help", 0), ("--helpfull", 0), ("--hlep", 2)])
def test_flags_are_answered_without_tensorflow(command, flag, exit_code, tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", AT_EXIT.format(command=command), flag],
        cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == exit_code
    assert done.stdout.endswith("False False\n")
    assert (f"python -m trainers.{command}" in done.stdout) == (exit_code == 0)
    assert ("error: there is no flag `--hlep`. Did you mean `--help`?" in done.stderr) == (exit_code == 2)


def test_unknown_mode_and_flag(tmp_path):
    refused(LINEAR, "--mode=trian", cwd=tmp_path, exit_code=2, says=["Did you mean `train`?"], run=run_process)
    refused(LINEAR, "--workdri=x", cwd=tmp_path, exit_code=2, says=["Did you mean `--workdir`?"])


def test_what_is_logged_is_seen_while_tensorflow_is_not(tmp_path):
    logs = "from absl import logging; logging.debug('quiet'); logging.info('loud'); import os; os.write(2, b'native')"
    done = run(write_task(tmp_path, outside=logs), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"I.* mine\.py:\d+\] loud\n", done.stderr)
    log = (tmp_path / "runs" / "mine" / "native_stderr.log").read_text()
    assert "native" in log
    assert "loud" not in log


def test_no_such_gin_file(tmp_path):
    gin(tmp_path, "", "digits_mpl.gin")
    refused(
        "--gin_file=digits_mlp.gin", cwd=tmp_path, exit_code=2, says=["digits_mlp.gin", "digits_mpl.gin", str(tmp_path)]
    )


def test_gin_syntax_error(tmp_path):
    flag = gin(tmp_path, "Trainer.steps = 10\nTrainer.global_batch_size = = 3\n")
    refused(flag, cwd=tmp_path, exit_code=2, says=["mine.gin", "2", "Trainer.global_batch_size = = 3"])


def test_duplicate_binding(tmp_path):
    flag = gin(tmp_path, "sgd.momentum = 0.5\nsgd.momentum = 0.6\n")
    refused(LINEAR, flag, cwd=tmp_path, exit_code=2, says=["sgd.momentum", "mine.gin:1", "mine.gin:2"])


MISTAKES = {
    "unknown configurable": ("adamm.learning_rate = 0.1", ["`adamm", "adam"]),
    "unknown parameter": ("Trainer.step = 3", ["`step`", "`steps`", "mine.gin:1"]),
    "unknown macro": ("Trainer.steps = %setps\nsteps = 3", ["setps", "steps"]),
    "unknown module": ("import my_reserch.spiral", ["my_reserch", "mine.gin:1"]),
    "binding that nothing uses": ("adamw.weight_decay = 0.1", ["adamw.weight_decay", "mine.gin:1"]),
    "macro that nothing uses": ("batch = 3", ["batch", "mine.gin:1"]),
    "misspelt scope": ("tset/digits.split = 'test'", ["tset", "test"]),
    "wrong type": ("Trainer.steps = 'many'", ["Trainer.steps", "'many'", "int"]),
    "float for a count": ("Trainer.steps = 10.5", ["Trainer.steps", "10.5"]),
    "object without parentheses": ("Experiment.train_source = @digits", ["Experiment.train_source", "@digits()"]),
    "task with parentheses": ("Experiment.task = @LinearClassifier()", ["Experiment.task", "@LinearClassifier"]),
    "batch that doesn't divide": ("Trainer.microbatches = 7", ["global_batch_size", "64", "63"]),
    "no steps": ("Trainer.steps = 0", ["Trainer.steps", "0", "at least 1"]),
    "interval within a chunk": ("Trainer.chunk_steps = 30", ["Trainer.log_every", "1000", "990"]),
    "negative rate": ("sgd.learning_rate = -0.1", ["learning_rate", "-0.1"]),
    "no such device": (
        "Experiment.strategy = @one_device()\none_device.device = 'TPU:7'",
        ["one_device.device", "TPU:7"],
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_configuration_mistakes(name, tmp_path):
    text, says = MISTAKES[name]
    refused(LINEAR, gin(tmp_path, text), cwd=tmp_path, exit_code=2, says=says)
    assert not (tmp_path / "runs" / "digits_linear" / "checkpoints").exists()


def test_required_parameter_left_out(tmp_path):
    flag = gin(
        tmp_path,
        """
        Experiment.task = @LinearClassifier
        Experiment.train_source = @digits()
        LinearClassifier.optimizer = @sgd()
        sgd.learning_rate = 0.1
        Trainer.steps = 10
        Trainer.global_batch_size = 32
        """,
    )
    refused(flag, cwd=tmp_path, exit_code=2, says=["LinearClassifier.in_size"])


def test_other_configuration_in_the_workdir(tmp_path):
    assert run(LINEAR, *SHORT, cwd=tmp_path).returncode == 0
    changed = (LINEAR, *SHORT, "--gin_param=sgd.momentum = 0.5")
    says = ["- sgd.momentum = 0.9", "+ sgd.momentum = 0.5", "--allow_config_change"]
    refused(*changed, cwd=tmp_path, exit_code=2, says=says)
    assert run(*changed, "--gin_param=Trainer.steps = 30", "--allow_config_change", cwd=tmp_path).returncode == 0
    # Another architecture can't go on from this checkpoint whatever is allowed.
    mlp = f"--gin_file={CONFIGS / 'digits_mlp.gin'}"
    says = ["net/w", "net/layers/0/w"]
    refused(mlp, "--workdir=runs/digits_linear", "--allow_config_change", cwd=tmp_path, exit_code=5, says=says)


def test_workdir_that_cant_be_written(tmp_path):
    (tmp_path / "file").write_text("in the way")
    refused(LINEAR, "--workdir=file/run", cwd=tmp_path, exit_code=2, says=["file/run", "--workdir"])


def test_damaged_checkpoints(tmp_path):
    keep = "--gin_param=Trainer.checkpoint_every = 10"
    assert run(LINEAR, *SHORT, keep, cwd=tmp_path).returncode == 0
    folder = tmp_path / "runs" / "digits_linear" / "checkpoints"
    newest, older = folder / "step-000000020", folder / "step-000000010"
    data = next(newest.glob("*.data-*"))
    data.write_bytes(data.read_bytes()[:-1])
    done = run(LINEAR, *SHORT, keep, cwd=tmp_path)
    assert done.returncode == 0
    assert "step-000000020" in done.stdout
    assert "going on from step 10" in done.stdout
    for manifest in folder.glob("*/manifest.json"):
        manifest.write_text("{")
    assert older.exists()
    refused(LINEAR, *SHORT, keep, cwd=tmp_path, exit_code=5, says=["checkpoints", "step-000000010"])


def test_label_out_of_range(tmp_path):
    labels = np.arange(20) % 10
    labels[13] = 10
    np.savez(tmp_path / "labels.npz", image=np.zeros([20, 8, 8, 1], "uint8"), label=labels)
    flags = ("--gin_param=Experiment.train_source = @npz()", "--gin_param=npz.path = 'labels.npz'")
    refused(LINEAR, *flags, cwd=tmp_path, exit_code=4, says=["`label`", "13", "10", "LinearClassifier"])


def test_label_out_of_range_that_only_shows_while_training(tmp_path):
    """A source that can't look at all its labels beforehand."""
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


def test_a_users_own_models_folder(tmp_path):
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "__init__.py").write_text("")
    says = [str(tmp_path / "models"), str(CHECKOUT / "models")]
    refused(LINEAR, cwd=tmp_path, exit_code=2, says=says, run=run_process)  # a fork has imported ours


def test_two_runs_in_one_workdir(tmp_path):
    (tmp_path / "busy").mkdir()
    with open(tmp_path / "busy" / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        refused(LINEAR, "--workdir=busy", cwd=tmp_path, exit_code=2, says=["busy", "another run"])


def test_eager_runs_the_step_function_without_tracing(tmp_path):
    flag = write_task(tmp_path, loss="print('mean', float(tf.reduce_mean(y))); return Loss(tf.square(y))")
    done = run(flag, "--eager", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "mean 0." in done.stdout
    traced = run(flag, cwd=tmp_path)
    assert traced.returncode == 1, traced.stderr
    assert "mine.py" in traced.stderr
    assert "run one step with `--eager`" in traced.stderr


def test_a_run_killed_before_its_result_gets_the_result(tmp_path):
    assert run(LINEAR, *SHORT, "--kill_after_step=20", cwd=tmp_path).returncode == -9
    result = tmp_path / "runs" / "digits_linear" / "result.json"
    assert not result.exists()
    done = run(LINEAR, *SHORT, cwd=tmp_path)
    assert done.returncode == 0
    assert "already finished" in done.stdout
    assert json.loads(result.read_text())["evaluation"]["accuracy"] > 0


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
def test_each_worker_has_a_log_of_its_own(kind, index, servers, name, monkeypatch):
    from trainers.native_stderr import log_name

    cluster = {"chief": ["a:1"], "worker": ["b:1", "c:1"], **({"ps": servers} if servers else {})}
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": cluster, "task": {"type": kind, "index": index}}))
    assert log_name() == name


@pytest.mark.parametrize(("rank", "name"), [("0", "native_stderr.log"), ("1", "native_stderr_rank_1.log")])
def test_under_slurm_logs_are_named_by_rank(rank, name, monkeypatch):
    from trainers.native_stderr import log_name

    monkeypatch.delenv("TF_CONFIG", raising=False)
    monkeypatch.setenv("SLURM_PROCID", rank)
    assert log_name() == name


@pytest.mark.parametrize("package", ["absl", "rich", "tensorboard", "gin", "numpy"])
@pytest.mark.parametrize("mistake", ["raise ImportError('torn')", "raise RuntimeError('torn')"])
def test_a_package_that_cant_be_imported_is_named(package, mistake, tmp_path):
    (tmp_path / package).mkdir()
    (tmp_path / package / "__init__.py").write_text(mistake)
    says = [
        "the package `" + {"absl": "absl-py", "gin": "gin-config"}.get(package, package) + "`",
        "torn",
        "pip install",
    ]
    refused(LINEAR, cwd=tmp_path, exit_code=2, says=says, run=run_process)


ABSURD = {
    "batch": ("Trainer.global_batch_size = 2147483647\nTrainer.log_every = 1", 8, ["Trainer.global_batch_size", "GiB"]),
    "replicas": ("Experiment.strategy = @mirrored()\nmirrored.replicas = 1000000", 2, ["1000000", "256"]),
    "seed": ("Experiment.seed = 18446744073709551616", 2, ["`Experiment.seed`", "less than 2 ** 62"]),
    "infinite steps": ("Trainer.steps = 1e400", 2, ["Trainer.steps", "1e999"]),
    "evaluation": (
        "Evaluator.global_batch_size = 9223372036854775808",
        2,
        ["`Evaluator.global_batch_size`", "at most"],
    ),
    "deadline": ("Trainer.section_deadline = 1e400", 2, ["`Trainer.section_deadline` is inf", "None"]),
}


@pytest.mark.parametrize("name", ABSURD)
def test_absurd_numbers_are_refused_before_they_are_tried(name, tmp_path):
    text, code, says = ABSURD[name]
    refused(LINEAR, gin(tmp_path, text), cwd=tmp_path, exit_code=code, says=says)
