"""Mistakes in a user's task and step function: the error is one paragraph that names the mistake."""

import functools
import json
import types

import pytest
import tensorflow as tf
from command_lab import PARTS, TASK, write_task

from core.optimizers import sgd
from core.task import Loss
from tests.commands import refused
from tests.toys import Line
from tests.trainers.trainer_lab import HELD_OUT, make, train
from trainers.errors.exit_report import report

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


def users_module(**parts):
    """Returns a module as a user would write it, not registered with gin."""
    module = types.ModuleType("mine")
    text = TASK.format(**{**PARTS, **parts}).replace("@gin.configurable\n", "")
    exec(compile(text, "mine.py", "exec"), module.__dict__)
    return module


def check(tmp_path, capsys, module, exit_code, says, *, count=20):
    """Trains; asserts one paragraph of error with this exit code."""

    def make_and_train():
        task = functools.partial(module.Mine, optimizer=sgd(0.01))
        train(make(tmp_path, task=task, source=module.numbers(count), steps=20, global_batch_size=4, log_every=10))

    with pytest.raises(Exception) as error:
        make_and_train()
    assert report(error.value, verbose=False) == exit_code
    text = capsys.readouterr().err
    assert text.startswith("error: "), text
    assert "Traceback" not in text
    assert "\n\n" not in text.strip()
    for part in says:
        assert part in text, (part, text)


@pytest.mark.parametrize("name", STEP_MISTAKES)
def test_mistake_in_a_step_function_is_one_paragraph(name, tmp_path, capsys):
    parts, exit_code, says = STEP_MISTAKES[name]
    check(tmp_path, capsys, users_module(**parts), exit_code, says)


def test_empty_source_is_refused(tmp_path, capsys):
    check(tmp_path, capsys, users_module(), 4, ["`numbers`", "empty"], count=0)


def test_command_ends_by_a_mistake_in_a_step_function(tmp_path):
    parts, exit_code, says = STEP_MISTAKES["misspelt feature"]
    refused(write_task(tmp_path, **parts), cwd=tmp_path, exit_code=exit_code, says=says)


def test_loss_that_overflows_late_keeps_the_last_checkpoint(tmp_path):
    # Plain gradient descent with far too high a rate: the loss overflows after a few steps.
    flag = write_task(tmp_path)
    flags = (flag, "--gin_param=sgd.learning_rate = 50.0", "--gin_param=Trainer.checkpoint_every = 10")
    text = refused(*flags, cwd=tmp_path, exit_code=3, says=["`net`", "not finite"])
    step = int(text.split("step ")[1].split()[0])
    result = json.loads((tmp_path / "runs" / "mine" / "result.json").read_text())
    assert (result["exit_code"], result["step"]) == (3, step)
    steps = [int(path.name[5:]) for path in (tmp_path / "runs" / "mine" / "checkpoints").glob("step-*")]
    assert all(saved <= step for saved in steps)


def mean(task, batch):
    return Loss(tf.reduce_mean(task.error(batch)))


def misspelt(task, batch):
    return Loss(task.error(batch) + batch["z"])


def making(task, batch):
    return Loss(task.error(batch) + tf.Variable(1.0))


@pytest.mark.parametrize(
    ("mistake", "said"),
    [(mean, "returned a scalar loss"), (misspelt, "reads `z`"), (making, "made a variable")],
    ids=["mean", "misspelt", "making"],
)
@pytest.mark.parametrize("shared", [True, False])
def test_mistake_names_the_phase_or_the_evaluation(mistake, said, shared, tmp_path):
    class Mistaken(Line):
        def loss(self, batch, rng):
            return mistake(self, batch) if shared else super().loss(batch, rng)

        def evaluate(self, batch):
            return self.loss(batch, None) if shared else mistake(self, batch)

    who = "phase `net`" if shared else "`evaluate`"
    with pytest.raises(ValueError, match=f"^{who} {said}"):
        make(tmp_path, task=Mistaken, eval_source=HELD_OUT)
