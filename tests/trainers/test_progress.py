"""The progress in a loss: the same in any chunks and after a resume, and part of a run's identity."""

import numpy as np
import pytest
import tensorflow as tf
from command_lab import write_task

from core.task import Loss
from tests import toys
from tests.commands import passed, refused, run
from tests.trainers.trainer_lab import hashes, make, newest, train
from trainers.modes.train_eagerly import eager_step


class Annealed(toys.Line):
    """Weights its loss by the progress, and reports the step and the progress."""

    def loss(self, batch, rng):
        squares = tf.square(self.error(batch))
        ones = tf.ones_like(squares)
        metrics = {"at": ones * tf.cast(rng.step, tf.float32), "done": ones * rng.progress}
        return Loss(squares * (1.0 + rng.progress), metrics=metrics)


def annealed(tmp_path, name, **settings):
    settings = {"steps": 20, "global_batch_size": 4, "log_every": 5, "chunk_steps": 5, **settings}
    return make(tmp_path, name, task=Annealed, source=toys.point_source(20), **settings)


def told(lines):
    return [(step, figures["at"], figures["done"]) for step, split, figures in lines if split == "train"]


EXPECTED = [(end, end - 3.0, (end - 3.0) / 20.0) for end in (5, 10, 15, 20)]  # means of five steps each


@pytest.mark.long
def test_step_in_a_loss_is_the_same_in_any_chunks_and_after_a_resume(tmp_path):
    whole, ones = annealed(tmp_path, "whole", checkpoint_every=10), annealed(tmp_path, "ones", chunk_steps=1)
    resumed = annealed(tmp_path, "resumed")
    for trainer in (whole, ones):
        np.testing.assert_allclose(told(train(trainer)), EXPECTED, rtol=1e-6)
    resumed.state.restore(newest(whole, up_to=10))
    np.testing.assert_allclose(told(train(resumed)), EXPECTED[2:], rtol=1e-6)
    assert hashes(whole) == hashes(ones) == hashes(resumed)


def test_step_in_a_loss_is_the_same_if_it_is_compiled(tmp_path):
    np.testing.assert_allclose(told(train(annealed(tmp_path, "compiled", compile=True))), EXPECTED, rtol=1e-6)


def test_step_in_a_loss_is_known_to_an_eager_step(tmp_path):
    figures = eager_step(annealed(tmp_path, "eager"))
    assert (figures["at"], figures["done"]) == (0.0, 0.0)


BY_STEP = "return Loss(tf.square(y) / tf.cast(1 + rng.step, tf.float32))"
BY_PROGRESS = "return Loss(tf.square(y) * (1.0 + rng.progress))"


@pytest.mark.long
def test_progress_in_a_loss_makes_the_number_of_steps_part_of_the_run(tmp_path):
    """The step alone isn't part of it."""

    def flags(steps):
        return flag, f"--gin_param=Trainer.steps = {steps}"

    flag = write_task(tmp_path, loss=BY_STEP)
    assert run(*flags(20), cwd=tmp_path).returncode == 0
    done = run(*flags(30), cwd=tmp_path)
    assert "resuming from step 20" in done.stdout
    # Code that starts to read the progress later doesn't know the run's earlier number of steps.
    write_task(tmp_path, loss=BY_PROGRESS)
    refused(*flags(40), cwd=tmp_path, exit_code=2, says=["+ Trainer.steps = 40"])
    done = passed(*flags(40), "--allow_config_change", cwd=tmp_path)
    assert "resuming from step 30" in done.stdout
    says = ["- Trainer.steps = 40\n+ Trainer.steps = 50", "because phase `net` asks for `rng.progress`"]
    refused(*flags(50), cwd=tmp_path, exit_code=2, says=[*says, "--allow_config_change"])
