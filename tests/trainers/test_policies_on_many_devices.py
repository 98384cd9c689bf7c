"""Bad steps are skipped, or rolled back, on many devices."""

import policy_lab as lab
import pytest
from trainer_lab import newest

from core.testing import on_virtual_cpus, on_virtual_mesh
from tests.commands import in_fresh_process

WHERE = {"2 replicas": lambda: on_virtual_cpus(2), "mesh": lambda: on_virtual_mesh(2, 1)}


@pytest.mark.long
@pytest.mark.parametrize(("where", "compile"), [("2 replicas", True), ("mesh", False)])
def test_bad_steps_are_skipped_on_many_devices(tmp_path, where, compile):
    examples, how = lab.struck(tmp_path, 7, 8, 13), {"strategy": WHERE[where](), "compile": compile, "steps": 20}
    trainer = lab.trainer_of(tmp_path, "skips", examples, on_nonfinite="skip", **how)
    lines = lab.train(trainer)
    assert [f["skipped_steps"] for _, split, f in lines if split == "train"] == [2, 3]
    assert trainer.step == 20
    around = lab.trainer_of(tmp_path, "around", examples, **how)
    lab.assert_same(lab.weights(trainer), lab.led(around, (0, 7), (9, 13), (14, 20)))


@pytest.mark.long
def test_rollback_resumes_past_the_examples_after_local_steps(tmp_path):
    check_rollback(tmp_path, "2 replicas", local_steps=5)


@pytest.mark.long
def test_rollback_resumes_past_the_examples_on_a_mesh(tmp_path):
    in_fresh_process(check_rollback, tmp_path, "mesh")  # in which TensorFlow has seen no other mesh


def check_rollback(tmp_path, where, **how):
    how = {"strategy": WHERE[where](), "steps": 20, **how}  # before anything else touches TensorFlow
    examples = lab.struck(tmp_path, 13)
    trainer = lab.trainer_of(tmp_path, "back", examples, on_nonfinite="rollback", **how)
    first = lab.weights(trainer)
    lines = lab.train(trainer)
    assert [(step, f["rollbacks"]) for step, split, f in lines if split == "train"] == [(10, 0), (20, 1)]
    assert newest(trainer).examples == (20 + 4) * lab.BATCH
    found = lab.weights(trainer)
    trainer.programs.again = trainer._run_chunk  # TensorFlow may refuse a second program of a mesh
    for path, variable in trainer.state.variables.items():
        variable.assign(first[path])
    lab.assert_same(found, lab.led(trainer, (0, 10), (10, 20, 4)))
