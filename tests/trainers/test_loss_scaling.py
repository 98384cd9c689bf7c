"""Runs in float16: the scale in metric lines and checkpoints, resuming, changes of precision, overflow for ever."""

import textwrap

import numpy as np
import policy_lab as lab
import pytest
import tensorflow as tf
from trainer_lab import make, newest, train

from core.data import ArraySource
from core.engine import accumulate_gradients
from core.engine.loss_scale import START
from core.errors import ConfigurationError
from core.optimizers import adam
from core.random import Rng
from core.task import Loss
from tests import toys
from tests.commands import run

ROWS, BATCH = 256, 8
RANDOM = np.random.RandomState(0)
SCALE, GOOD_STEPS = "loss_scale/net/scale", "loss_scale/net/good_steps"


class Steep(toys.Line):
    """Its slope is `2 ** steep` for some examples, which the backward pass holds in float16, but not its loss."""

    optimizer = adam(0.05)

    def loss(self, batch, rng):
        slope = tf.pow(2.0, tf.cast(batch["steep"], tf.float32))
        return Loss(slope * tf.square(tf.cast(self.error(batch), tf.float32)))


class Faint(toys.Line):
    """Its gradients are smaller than float16's smallest number."""

    optimizer = adam(0.05, epsilon=1e-20)

    def loss(self, batch, rng):
        return Loss(2.0**-30 * tf.square(tf.cast(self.error(batch), tf.float32)))


def source(least=0):
    """Returns points, of which few are steep: a run meets them now and then."""
    steep = np.where(RANDOM.rand(ROWS) < 0.04, RANDOM.randint(4, 10, [ROWS]), least).astype(np.int32)
    return ArraySource({**toys.points(ROWS), "steep": steep}, name="some")


SOME = source()


def trainer_of(tmp_path, name, *, task=Steep, source=SOME, precision="float16", **settings):
    how = {"steps": 40, "global_batch_size": BATCH, "chunk_steps": 5, "log_every": 5, "checkpoint_every": 5}
    return make(tmp_path, name, task=task, source=source, precision=precision, **{**how, **settings})


@pytest.mark.long
def test_a_run_killed_between_two_overflows_resumes_to_the_same_bits(tmp_path):
    whole = trainer_of(tmp_path, "whole")
    lab.copy_at_save(whole, lambda state: float(state.variables[SCALE]) < START)
    lines = [figures for _, split, figures in lab.train(whole) if split == "train"]
    scales, overflowed = ([line[name] for line in lines] for name in ("loss_scale", "overflowed_steps"))
    assert len({scale for scale in scales if scale < START}) > 1  # the scale fell again after the kill
    assert [START / 2 ** sum(overflowed[: i + 1]) for i in range(len(lines))] == scales
    assert all(np.isfinite(line["loss"]) for line in lines)
    again = trainer_of(tmp_path, "killed")
    lab.resume(again)
    assert lab.end_of(again) == lab.end_of(whole)
    assert {SCALE, GOOD_STEPS} <= newest(whole).variables.keys()


@pytest.mark.long
def test_a_change_of_precision_begins_with_a_new_scale_and_drops_the_old_one(tmp_path):
    before = trainer_of(tmp_path, "run", precision="float32", steps=10)
    train(before)
    assert not {path for path in newest(before).variables if path.startswith("loss_scale")}
    narrow = trainer_of(tmp_path, "run", steps=20)
    narrow.state.restore(newest(before))
    assert float(narrow.state.variables[SCALE]) == START
    assert train(narrow)[-1][2]["loss_scale"] == float(narrow.state.variables[SCALE])
    after = trainer_of(tmp_path, "run", precision="float32", steps=30)
    after.state.restore(newest(narrow))
    assert "loss_scale" not in train(after)[-1][2]


@pytest.mark.long
def test_gradients_that_would_underflow_train_with_a_scale(tmp_path):
    trainer = trainer_of(tmp_path, "run", task=Faint, log_every=20)
    values = {key: tf.constant(x[np.newaxis]) for key, x in toys.points(BATCH).items()}
    how = (trainer.experiment.task.loss, trainer.experiment.task.net.parameters(), values, Rng.from_seed(0))
    narrow, wide = (accumulate_gradients(*how, precision=dtype)[0].gradients["w"] for dtype in ("float16", "float32"))
    assert not np.any(narrow)
    assert np.all(wide)
    first, last = [figures["loss"] for _, split, figures in train(trainer) if split == "train"]
    assert last < 0.7 * first


def test_each_float16_update_of_several_has_its_scale_and_its_overflows_in_lines(tmp_path):
    trainer = trainer_of(tmp_path, "run", task=toys.Pair, precision={"second": "float16"}, steps=5)
    figures = train(trainer)[-1][2]
    found = {name: x for name, x in figures.items() if "scale" in name or "overflow" in name}
    assert found.keys() == {"second/loss_scale", "second/overflowed_steps"}
    assert found["second/loss_scale"] == START / 2 ** found["second/overflowed_steps"]


def test_steps_apart_are_refused(tmp_path):
    with pytest.raises(ConfigurationError, match=r"float16 \(`Trainer.precision`\).*with `Trainer.local_steps`"):
        trainer_of(tmp_path, "run", local_steps=5)


ENDLESS = """
import gin
import numpy as np
import tensorflow as tf
from core.data import ArraySource
from core.layers import Linear
from core.optimizers import sgd
from core.task import Loss, Task, Update

@gin.configurable
class Endless(Task):
    def __init__(self, *, rng):
        super().__init__()
        self.net = Linear(3, 1, rng=rng)

    def phases(self):
        return [Update("net", loss=self.loss, trains=self.net, optimizer=sgd(0.1))]

    def loss(self, batch, rng):
        made = self.net(batch["x"])[:, 0]
        return Loss(2.0**20 * tf.cast(made, tf.float32))

@gin.configurable
def numbers():
    return ArraySource({"x": np.ones([20, 3], "float32")}, name="numbers")
"""

CONFIGURATION = """
import endless
Experiment.task = @Endless
Experiment.train_source = @numbers()
Trainer.steps = 100
Trainer.global_batch_size = 4
Trainer.log_every = 10
Trainer.precision = "float16"
"""


@pytest.mark.long
def test_overflow_for_ever_ends_the_run_and_names_the_first_operation(tmp_path):
    (tmp_path / "endless.py").write_text(ENDLESS)
    (tmp_path / "endless.gin").write_text(textwrap.dedent(CONFIGURATION))
    done = run("--gin_file=endless.gin", "--workdir=run", cwd=tmp_path)
    assert done.returncode == 3, (done.stdout, done.stderr)
    assert "step 15 is not finite: in phase `net`, the gradient of `" in done.stderr  # after the scale was halved to 1
    capsule = done.stderr.partition("--mode=replay --capsule=")[2].partition("`")[0]
    done = run("--mode=replay", f"--capsule={capsule}", cwd=tmp_path)
    assert done.returncode == 3, (done.stdout, done.stderr)
    assert "Cast" in done.stdout
    assert "tf.cast(made, tf.float32)" in done.stdout
