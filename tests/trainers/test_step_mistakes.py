"""Mistakes in a user's own task and step function: refused in one paragraph that names what is wrong."""

import json

import pytest
from command_lab import write_task

from tests.commands import refused, run

STEP_MISTAKES = {
    "network outside the task": (
        {
            "init": "del self.net; NETS[0] = Net()",
            "outside": "NETS = {}",
            "trains": "NETS[0]",
            "y": "NETS[0](batch['x'])",
        },
        2,
        ["`net`", "isn't part of `Mine`"],
    ),
    "list for a tensor": ({"loss": "return Loss([1.0, 2.0, 3.0, 4.0])"}, 2, ["`net`", "`per_example`", "tensors"]),
    "negative weights": ({"loss": "return Loss(y, weight=-tf.ones_like(y))"}, 3, ["step 0", "`net`", "-4.0"]),
    "reserved metric": ({"loss": "return Loss(y, metrics={'step': y})"}, 2, ["`net`", "`step`", "rename"]),
    "misspelt feature": ({"loss": "return Loss(y * batch['xx'][:, 0])"}, 2, ["`net`", "`xx`", "Did you mean `x`?"]),
    "trains a variable": ({"trains": "self.net.w"}, 2, ["`net`", "`trains`", "module"]),
    "scalar loss": ({"loss": "return Loss(tf.reduce_mean(tf.square(y)))"}, 2, ["`net`", "scalar", "per example"]),
    "no Loss": ({"loss": "return tf.square(y)"}, 2, ["`net`", "Loss(per_example"]),
    "None gradient": (
        {"loss": "return Loss(tf.square(tf.reduce_sum(batch['x'] * self.net.w, 1)))"},
        2,
        ["`net`", "`unused`", "trains"],
    ),
    "variable made after set-up": (
        {"loss": "self.late = tf.Variable(1.0, name='late'); return Loss(y * self.late)"},
        2,
        ["`late`", "__init__"],
    ),
    "variable outside the scope": (
        {"outside": "SHARED = tf.Variable(1.0)", "init": "self.shared = SHARED"},
        2,
        ["`shared`", "strategy"],
    ),
    "not finite": ({"loss": "return Loss(tf.math.log(y - y))"}, 3, ["step 0", "`net`", "`loss`", "-inf"]),
    "wrong rows": ({"loss": "return Loss(tf.concat([y, y], 0))"}, 2, ["`net`", "8", "4"]),
    "metric of another shape": (
        {"loss": "return Loss(y, metrics={'mean': tf.reduce_mean(y)})"},
        2,
        ["metrics['mean']", "shape"],
    ),
}


@pytest.mark.parametrize("name", STEP_MISTAKES)
def test_step_function_mistakes(name, tmp_path):
    parts, exit_code, says = STEP_MISTAKES[name]
    refused(write_task(tmp_path, **parts), cwd=tmp_path, exit_code=exit_code, says=says)


def test_good_step_function_of_ones_own(tmp_path):
    done = run(write_task(tmp_path), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""


def test_not_finite_after_a_while_keeps_the_last_checkpoint(tmp_path):
    # Plain gradient descent with much too high a rate: the loss overflows after a few steps.
    flag = write_task(tmp_path)
    flags = (flag, "--gin_param=sgd.learning_rate = 50.0", "--gin_param=Trainer.checkpoint_every = 10")
    text = refused(*flags, cwd=tmp_path, exit_code=3, says=["`net`", "not finite"])
    step = int(text.split("step ")[1].split()[0])
    result = json.loads((tmp_path / "runs" / "mine" / "result.json").read_text())
    assert result["exit_code"] == 3
    assert result["step"] == step
    steps = [int(path.name[5:]) for path in (tmp_path / "runs" / "mine" / "checkpoints").glob("step-*")]
    assert all(saved <= step for saved in steps)


def test_empty_source(tmp_path):
    flag = write_task(tmp_path)
    wrong = "--gin_param=numbers.count = 0"
    refused(flag, wrong, cwd=tmp_path, exit_code=4, says=["`numbers`", "empty"])
