"""A moment of a run that is come to again is that moment, bit for bit."""

import numpy as np
import pytest

from core import checkpoint
from core.testing import on_virtual_cpus
from tests.trainers.trainer_lab import make, train
from trainers.again import come_before_bad_step, pass_steps

EVERY = {"steps": 20, "chunk_steps": 5, "log_every": 10, "checkpoint_every": 5, "keep_checkpoints": 9}


def manifest_of(trainer, step):
    return checkpoint.newest(trainer.workdir.checkpoints, warn=pytest.fail, up_to=step)


def hashes(trainer):
    return {path: checkpoint.manifest.described(v).sha256 for path, v in trainer.state.variables.items()}


@pytest.mark.parametrize("replicas", [1, 2])
def test_steps_that_are_passed_end_in_the_bits_of_training(replicas, tmp_path):
    def again():
        return make(tmp_path, strategy=on_virtual_cpus(replicas) if replicas > 1 else None, **EVERY)

    train(again())
    trainer = again()
    trainer.state.restore(manifest_of(trainer, 5))
    pass_steps(trainer, 12)  # within a chunk
    pass_steps(trainer, 15)
    saved = manifest_of(trainer, 15)
    assert saved.step == trainer.step == 15
    assert hashes(trainer) == {path: v.sha256 for path, v in saved.variables.items() if path in hashes(trainer)}


def test_the_first_step_that_leaves_what_is_not_finite_is_gone_back_to(tmp_path):
    train(trainer := make(tmp_path, **EVERY))
    manifest = manifest_of(trainer, 10)
    trainer = make(tmp_path, **EVERY)
    assert come_before_bad_step(trainer, manifest, 13) == 13
    whole = hashes(trainer)
    pass_steps_as_they_are = trainer.take_steps

    def struck(*args, **kwargs):
        pass_steps_as_they_are(*args, **kwargs)
        if trainer.step > 13:  # the update of step 13 wrote it
            variable = next(iter(trainer.state.variables.values()))
            variable.assign(variable + np.inf)

    trainer.take_steps = struck
    assert come_before_bad_step(trainer, manifest, 16) == 13
    assert hashes(trainer) == whole
