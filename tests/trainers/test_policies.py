"""Bad steps are skipped, or rolled back and passed; killed runs resume to the same bits."""

import json
from types import SimpleNamespace

import policy_lab as lab
import pytest
from trainer_lab import newest

from core.distribution import backend_of
from core.errors import ConfigurationError, DataError
from core.parallel.local_steps import LocalSteps
from core.parallel.parameter_server import ServedStrategy
from trainers.options.bad_steps import Policies

around = pytest.fixture(scope="module")(lab.leading)


@pytest.mark.long
def test_bad_steps_are_skipped_until_too_many_come_in_a_row(tmp_path, around):
    """A run that is killed among them ends at the same step, with the same bits."""
    examples, how = lab.struck(tmp_path, 7, 8, 23, 29, 30, 31), {"on_nonfinite": "skip", "max_skips": 2}
    says = r"step 31 is not finite.*The 2 steps before it.*`Trainer.max_skips` is 2"
    whole = lab.trainer_of(tmp_path, "whole", examples, **how)
    lab.copy_at_save(whole, lambda state: state.step == 30)
    with pytest.raises(DataError, match=says):
        lab.train(whole)
    lines = [json.loads(line) for line in whole.workdir.metrics.read_text().splitlines()]
    assert [line["skipped_steps"] for line in lines if line["split"] == "train"] == [2, 2, 4]
    lab.assert_same(lab.weights(whole), around((0, 7), (9, 23), (24, 29)))
    again = lab.trainer_of(tmp_path, "killed", examples, **how)
    with pytest.raises(DataError, match=says):
        lab.resume(again)
    assert lab.end_of(again) == lab.end_of(whole)
    lab.assert_same(lab.weights(again), lab.weights(whole))


@pytest.mark.long
def test_rollback_resumes_past_the_examples_and_ends_the_same_if_it_is_killed(tmp_path, around):
    examples, how = lab.struck(tmp_path, 23), {"on_nonfinite": "rollback"}
    whole = lab.trainer_of(tmp_path, "whole", examples, **how)
    lab.copy_at_save(whole, lambda state: state.passed_over.rollbacks)
    lines = lab.train(whole)
    found = [(step, f["rollbacks"]) for step, split, f in lines if split == "train"]
    assert found == [(10, 0), (20, 0), (30, 1), (40, 1)]
    lab.assert_same(lab.weights(whole), around((0, 20), (20, lab.STEPS, 4)))
    assert newest(whole).examples == (lab.STEPS + 4) * lab.BATCH
    again = lab.trainer_of(tmp_path, "killed", examples, **how)
    lab.resume(again)
    assert lab.end_of(again) == lab.end_of(whole)


def test_rollback_returns_to_the_beginning_if_nothing_was_saved_since_and_ends_by_its_limit(tmp_path, around):
    examples = lab.struck(tmp_path, 18, 19 + 33)
    how = {"on_nonfinite": "rollback", "max_rollbacks": 1, "checkpoint_every": None}
    trainer = lab.trainer_of(tmp_path, "back", examples, **how)
    says = r"step 33 is not finite.*The run went back 1 times before, and `Trainer.max_rollbacks` is 1"
    with pytest.raises(DataError, match=says):
        lab.train(trainer)
    before, after = around((0, 33, 19)), around((0, 34, 19))  # the bad step writes the first network alone
    lab.assert_same(lab.weights(trainer), {path: after[path] if "first" in path else x for path, x in before.items()})
    lines = [json.loads(line) for line in trainer.workdir.metrics.read_text().splitlines()]
    assert [line["step"] for line in lines if line["split"] == "train"] == [10, 20, 30]
    # The state of a hook is rolled back as well.
    assert [(line["step"], line["calls"]) for line in lines if line["split"] == "counted"] == [(15, 1), (30, 2)]


@pytest.mark.parametrize(
    ("policy", "figure", "parts"),
    [
        ("skip", "skipped_steps", [(0, 110), (111, 120)]),
        pytest.param("rollback", "rollbacks", [(0, 100), (100, 120, 11)], marks=pytest.mark.long),
    ],
)
def test_spike_is_skipped_or_rolled_back(tmp_path, around, policy, figure, parts):
    examples = lab.struck(tmp_path, 110, value=1e6)
    trainer = lab.trainer_of(tmp_path, policy, examples, steps=120, checkpoint_every=50, on_spike=policy)
    assert [figures[figure] for _, split, figures in lab.train(trainer) if split == "train"][-1] == 1
    lab.assert_same(lab.weights(trainer), around(*parts))


SERVED, APART = backend_of(object.__new__(ServedStrategy)), LocalSteps(None, 4)


@pytest.mark.parametrize(
    ("settings", "backend", "says"),
    [
        ({"on_nonfinite": "skip"}, APART, r"^`Trainer\.on_nonfinite = 'skip'` is .*`Trainer\.local_steps`.*'ro"),
        ({"on_spike": "rollback"}, APART, r"^`Trainer\.on_spike` is .*`Trainer\.local_steps`.* leave it out"),
        ({"on_nonfinite": "skip"}, SERVED, r"^`Trainer\.on_nonfinite = 'skip'` is .*`@parameter_server\(\)`"),
        ({"on_nonfinite": "rollback"}, SERVED, r"^`Trainer\.on_nonfinite = 'rollback'` is .*`@parameter_ser"),
        ({"on_spike": "skip"}, SERVED, r"^`Trainer\.on_spike` is .*`@parameter_server\(\)`.*`@mirrored\(\)`"),
    ],
)
def test_policy_is_refused_where_steps_are_not_taken_together(settings, backend, says):
    nothing = dict.fromkeys(("on_spike", "max_skips", "max_rollbacks", "spike_factor"))
    policies = Policies(**{"on_nonfinite": "raise", **nothing, **settings})
    with pytest.raises(ConfigurationError, match=says):
        policies.skipping(SimpleNamespace(backend=backend), None)
