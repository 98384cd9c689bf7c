"""`Experiment.deterministic`: runs repeat their bits, and operations that can't are refused."""

import json

import pytest

from core import checkpoint
from tests.commands import CONFIGS, passed, refused, run
from tests.trainers.command_lab import write_task

ON = "--gin_param=Experiment.deterministic = True"
CONVNET = [
    f"--gin_file={CONFIGS / 'digits_convnet.gin'}",
    "--gin_param=Trainer.steps = 3",
    "--gin_param=Trainer.global_batch_size = 16",
    "--gin_param=ConvNetClassifier.channels = [4]",
    "--gin_param=Trainer.evaluate_every = None",
    "--gin_param=Experiment.eval_source = None",
]


def bits(workdir):
    saved = checkpoint.newest(workdir / "checkpoints", warn=print)
    return {path: variable.sha256 for path, variable in saved.variables.items()}


TWO = [f"--gin_file={CONFIGS / 'runtime' / 'mirrored.gin'}", "--gin_param=mirrored.replicas = 2"]


@pytest.mark.parametrize(
    "flags", [pytest.param(TWO, id="replicas"), pytest.param(CONVNET, id="convolutions", marks=pytest.mark.long)]
)
def test_two_runs_end_in_the_same_bits(flags, tmp_path):
    task = [write_task(tmp_path)] if flags is TWO else []
    for workdir in ("one", "other"):
        passed(*task, *flags, ON, f"--workdir={workdir}", cwd=tmp_path)
    assert bits(tmp_path / "one") == bits(tmp_path / "other")


@pytest.mark.long
def test_deterministic_mode_is_tensorflows_and_no_part_of_the_identity(tmp_path):
    # A random number without a seed is what TensorFlow refuses in this mode, and in no other.
    flag = write_task(tmp_path, init="tf.random.normal([1])")
    passed(flag, cwd=tmp_path)
    again = run(flag, "--gin_param=Trainer.steps = 30", ON, cwd=tmp_path)
    assert again.returncode == 1
    assert "when determinism is enabled" in again.stderr
    write_task(tmp_path)
    again = passed(flag, "--gin_param=Trainer.steps = 30", ON, cwd=tmp_path)
    assert json.loads((tmp_path / "runs" / "mine" / "result.json").read_text())["step"] == 30


def test_operations_without_a_repeatable_kernel_are_refused(tmp_path):
    pool = 'tf.nn.max_pool2d(tf.reshape(y, [1, 1, -1, 1]), [1, 2], [1, 1], "SAME")'
    flag = write_task(tmp_path, loss=f"return Loss(tf.square(tf.reshape({pool}, [-1])))")
    says = ["`Experiment.deterministic` is True", "MaxPool", '`Trainer.compile = "off"`']
    refused(flag, ON, "--gin_param=Trainer.compile = True", cwd=tmp_path, exit_code=2, says=says)
