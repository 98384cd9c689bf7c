"""Replaying training up to a step gives the variables of the run, bit for bit."""

import numpy as np
import pytest

from core import checkpoint
from tests.trainers.trainer_lab import make, newest, train
from trainers.replay.repeat_steps import come_before_bad_step, pass_steps


def hashes(trainer):
    return {path: checkpoint.manifest.described(v).sha256 for path, v in trainer.state.variables.items()}


def test_steps_beyond_the_last_one_are_refused(tmp_path):
    trainer = make(tmp_path, steps=20, chunk_steps=10)
    with pytest.raises(ValueError, match=r"^`end` is 21, but the run has 20 steps \(`Trainer.steps`\)"):
        pass_steps(trainer, 21)


@pytest.mark.long
def test_replayed_steps_end_in_the_bits_of_training(tmp_path):
    how = {"steps": 15, "chunk_steps": 5, "log_every": 15, "checkpoint_every": 5, "keep_checkpoints": 9}
    train(trainer := make(tmp_path, **how))

    def saved(step):
        return newest(trainer, up_to=step)

    trainer.state.restore(saved(5))
    pass_steps(trainer, 12)  # within a chunk
    pass_steps(trainer, 15)
    assert saved(15).step == trainer.step == 15
    assert hashes(trainer) == {path: v.sha256 for path, v in saved(15).variables.items() if path in hashes(trainer)}
    assert come_before_bad_step(trainer, saved(10), 13) == 13
    whole = hashes(trainer)
    pass_steps_as_they_are = trainer.take_steps

    def struck(*args, **kwargs):
        pass_steps_as_they_are(*args, **kwargs)
        if trainer.step > 13:  # the update of step 13 wrote it
            variable = next(iter(trainer.state.variables.values()))
            variable.assign(variable + np.inf)

    trainer.take_steps = struck
    assert come_before_bad_step(trainer, saved(10), 15) == 13
    assert hashes(trainer) == whole
