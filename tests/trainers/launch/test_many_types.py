"""Values of many types between several processes: TensorFlow sends few of them, and one at a time."""

import json

import numpy as np
import pytest

from tests.commands import CONFIGS, launch, passed
from tests.trainers.launch.test_many_workers import FLAGS, SHORT, saved, values

MIXED = """
import gin
import tensorflow as tf
from core import layers, losses, metrics
from core.data import digits
from core.optimizers import sgd
from core.task import ONE_DEVICE, Compute, Loss, Task, Update, all_rows

TYPES = (tf.bool, tf.uint8, tf.int64, tf.bfloat16, tf.float64)


@gin.configurable
class Mixed(Task):
    def __init__(self, *, rng):
        super().__init__()
        self.one = layers.Linear(64, 10, rng=rng.fold("one"))
        self.other = layers.Linear(64, 10, rng=rng.fold("other"))
        self.third = layers.Linear(64, 10, rng=rng.fold("third"))

    def phases(self):
        return [
            Compute("look", self.look),
            Update("one", loss=self.loss_of_one, trains=self.one, optimizer=sgd(0.1), placement=ONE_DEVICE),
            Update("other", loss=self.loss_of_other, trains=self.other, optimizer=sgd(0.1)),
            Update("third", loss=self.loss_of_third, trains=self.third, optimizer=sgd(0.1), mixes_rows=True),
        ]

    def look(self, batch, rng):
        bright = tf.reduce_mean(batch["image"], [1, 2, 3])
        return {dtype.name: tf.cast(tf.round(4.0 * bright), dtype) for dtype in TYPES}

    def loss_of_one(self, batch, rng):
        seen = tf.add_n([tf.cast(batch[dtype.name], tf.float32) for dtype in TYPES])
        return self.losses(self.one, batch, 1.0 + seen)

    def loss_of_other(self, batch, rng):
        return self.losses(self.other, batch, None)

    def loss_of_third(self, batch, rng):
        seen = tf.add_n([tf.reduce_mean(tf.cast(all_rows(batch[dtype.name]), tf.float32)) for dtype in TYPES])
        return self.contrast(batch, seen)

    def contrast(self, batch, seen):
        image = tf.reshape(batch["image"], [-1, 64])
        count = tf.cast(batch["label"], tf.int32) < 7
        found = losses.info_nce(self.third(image), self.third(image[:, ::-1]), mask=count)
        return Loss(found * (1.0 + seen), weight=tf.cast(count, tf.float32))

    def losses(self, net, batch, weight):
        logits = net(tf.reshape(batch["image"], [-1, 64]))
        label = tf.cast(batch["label"], tf.int32)
        costs = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=label, logits=logits)
        right = tf.cast(tf.argmax(logits, 1, tf.int32) == label, tf.float32)
        return Loss(costs, weight, metrics={"right": right, "covered": metrics.ClassCoverage.of(label, 10)})

    def evaluate(self, batch):
        figures = self.losses(self.other, batch, tf.cast(tf.cast(batch["label"], tf.int32) < 7, tf.float32))
        return figures._replace(per_example=figures.per_example + self.contrast(batch, 0.0).per_example)
"""
SETTINGS = """
import mixed
Experiment.task = @Mixed
Experiment.train_source = @digits()
Experiment.eval_source = @test/digits()
test/digits.split = "test"
Trainer.steps = 4
Trainer.global_batch_size = 32
Trainer.log_every = 4
Trainer.evaluate_every = 4
Trainer.checkpoint_every = 4
Evaluator.global_batch_size = 7
"""


def weights_in(workdir):
    return {key: x for key, x in values(saved(workdir)[0]).items() if "figures" not in key}


def evaluation(workdir):
    return json.loads((workdir / "result.json").read_text())["evaluation"]


@pytest.mark.long
def test_two_processes_send_each_other_what_two_replicas_of_one_do(tmp_path):
    (tmp_path / "mixed.py").write_text(MIXED)
    (tmp_path / "mixed.gin").write_text(SETTINGS)
    many, one = (f"--gin_file={CONFIGS / 'runtime' / name}.gin" for name in ("multi_worker", "mirrored"))
    flags = ["--gin_file=mixed.gin", many, "--workdir=many"]
    passed("--workers=2", "--", *flags, cwd=tmp_path, run=launch)
    passed("--gin_file=mixed.gin", one, "--workdir=one", cwd=tmp_path)
    expected = weights_in(tmp_path / "one")
    for key, found in weights_in(tmp_path / "many").items():
        np.testing.assert_allclose(found, expected[key], rtol=1e-5, atol=1e-5, err_msg=key)
    assert evaluation(tmp_path / "many") == pytest.approx(evaluation(tmp_path / "one"), rel=1e-5)


@pytest.mark.long
def test_two_processes_may_send_gradients_in_half_the_bytes(tmp_path):
    halved = [*SHORT, "--gin_param=Trainer.reduce_gradients_in = 'bfloat16'", "--workdir=many"]
    passed("--workers=2", "--", *FLAGS, *halved, cwd=tmp_path, run=launch)
    assert all(np.all(np.isfinite(x)) for x in weights_in(tmp_path / "many").values())
