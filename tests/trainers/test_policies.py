"""What becomes of a bad step: left out, or taken back with the way to it; killed and resumed to the same bits."""

import json
from types import SimpleNamespace

import pytest
from policy_lab import BATCH, STEPS, assert_same, end_of, led, resume, struck, train, trainer_of, weights
from trainer_lab import Crash, newest

from core.distribution import ServedStrategy
from core.errors import ConfigurationError, DataError
from core.testing import on_virtual_cpus, on_virtual_mesh
from trainers.policies import Policies

WHERE = {"one device": lambda: None, "2 replicas": lambda: on_virtual_cpus(2), "mesh": lambda: on_virtual_mesh(2, 1)}
ELSEWHERE = [("one device", True), ("2 replicas", False), ("2 replicas", True), ("mesh", False)]
PLACES = [("one device", False), *(pytest.param(*place, marks=pytest.mark.long) for place in ELSEWHERE)]


@pytest.mark.parametrize(("where", "compile"), PLACES)
def test_a_run_leaves_bad_steps_out(tmp_path, where, compile):
    examples, how = struck(tmp_path, 7, 8, 23), {"strategy": WHERE[where](), "compile": compile}
    trainer = trainer_of(tmp_path, "skips", examples, on_nonfinite="skip", **how)
    lines = train(trainer)
    assert [f["skipped_steps"] for _, split, f in lines if split == "train"] == [2, 2, 3, 3]
    assert trainer.step == STEPS
    around = trainer_of(tmp_path, "around", examples, **how)
    assert_same(weights(trainer), led(around, (0, 7), (9, 23), (24, STEPS)))


def test_a_run_that_leaves_steps_out_ends_the_same_if_it_is_killed(tmp_path):
    examples, how = struck(tmp_path, 9, 10, 23), {"on_nonfinite": "skip", "max_skips": 2}
    whole = trainer_of(tmp_path, "whole", examples, **how)
    train(whole)
    for step in (10, 15, 30):
        killed = trainer_of(tmp_path, f"killed-{step}", examples, hooks=[Crash(step)], **how)
        with pytest.raises(RuntimeError):
            train(killed)
        again = trainer_of(tmp_path, f"killed-{step}", examples, **how)
        resume(again) if newest(again) else train(again)
        assert end_of(again) == end_of(whole)


def test_too_many_bad_steps_in_a_row_end_the_run_though_it_was_killed_among_them(tmp_path):
    examples, how = struck(tmp_path, 8, 9, 10, 18, 19, 20, 21), {"on_nonfinite": "skip", "max_skips": 3}
    with pytest.raises(RuntimeError):
        train(trainer_of(tmp_path, "run", examples, hooks=[Crash(15)], **how))
    again = trainer_of(tmp_path, "run", examples, **how)
    with pytest.raises(DataError, match=r"step 21 is not finite.*The 3 steps before it.*`Trainer.max_skips` is 3"):
        resume(again)
    assert_same(weights(again), led(trainer_of(tmp_path, "around", examples), (0, 8), (11, 18)))


LOCAL = {"local_steps": 5}
BACK = [("2 replicas", {}), ("2 replicas", LOCAL), ("mesh", {})]


@pytest.mark.parametrize(
    ("where", "how"), [("one device", {}), *(pytest.param(*place, marks=pytest.mark.long) for place in BACK)]
)
def test_a_run_goes_back_and_past_the_examples(tmp_path, where, how):
    examples, how = struck(tmp_path, 23), {"strategy": WHERE[where](), **how}
    trainer = trainer_of(tmp_path, "back", examples, on_nonfinite="rollback", **how)
    lines = train(trainer)
    found = [(step, f["rollbacks"]) for step, split, f in lines if split == "train"]
    assert found == [(10, 0), (20, 0), (30, 1), (40, 1)]
    around = trainer_of(tmp_path, "around", examples, **how)
    led(around, (0, 20))
    around.input.origin += 4 * BATCH
    assert_same(weights(trainer), led(around, (20, STEPS)))
    assert newest(trainer).examples == (STEPS + 4) * BATCH


def test_a_run_goes_back_to_its_beginning_where_nothing_was_saved_since(tmp_path):
    examples = struck(tmp_path, 18)
    trainer = trainer_of(tmp_path, "back", examples, on_nonfinite="rollback", checkpoint_every=None)
    train(trainer)
    around = trainer_of(tmp_path, "around", examples)
    around.input.origin += 19 * BATCH
    assert_same(weights(trainer), led(around, (0, STEPS)))
    lines = [json.loads(line) for line in trainer.workdir.metrics.read_text().splitlines()]
    assert [line["step"] for line in lines if line["split"] == "train"] == [10, 20, 30, 40]
    # What a hook has come to since is taken back as well.
    assert [(line["step"], line["calls"]) for line in lines if line["split"] == "counted"] == [
        (15, 1),
        (30, 2),
        (40, 3),
    ]


class KilledError(Exception):
    pass


@pytest.mark.parametrize("before", [True, False], ids=["before it is saved", "once it is saved"])
def test_a_run_that_was_killed_while_it_went_back_ends_the_same(tmp_path, monkeypatch, before):
    examples, how = struck(tmp_path, 23), {"on_nonfinite": "rollback"}
    whole = trainer_of(tmp_path, "whole", examples, **how)
    train(whole)
    killed = trainer_of(tmp_path, "killed", examples, **how)
    save = killed.state.save

    def dying(**arguments):
        if killed.state.rollbacks and before:
            raise KilledError
        save(**arguments)
        if killed.state.rollbacks:
            raise KilledError

    monkeypatch.setattr(killed.state, "save", dying)
    with pytest.raises(KilledError):
        train(killed)
    again = trainer_of(tmp_path, "killed", examples, **how)
    resume(again)
    assert end_of(again) == end_of(whole)


def test_a_run_goes_back_so_often_and_no_more(tmp_path):
    examples, how = struck(tmp_path, 3, 23), {"on_nonfinite": "rollback", "max_rollbacks": 1}
    with pytest.raises(RuntimeError):
        train(trainer_of(tmp_path, "run", examples, hooks=[Crash(15)], **how))
    with pytest.raises(DataError, match=r"The run went back 1 times before, and `Trainer.max_rollbacks` is 1"):
        resume(trainer_of(tmp_path, "run", examples, **how))


@pytest.mark.parametrize(("policy", "figure"), [("skip", "skipped_steps"), ("rollback", "rollbacks")])
def test_a_spike_is_left_out_or_taken_back(tmp_path, policy, figure):
    examples = struck(tmp_path, 110, value=1e6)
    trainer = trainer_of(tmp_path, "run", examples, steps=120, checkpoint_every=50, on_spike=policy)
    assert [figures[figure] for _, split, figures in train(trainer) if split == "train"][-1] == 1
    around = trainer_of(tmp_path, "around", examples, steps=120)
    led(around, (0, 100))
    if policy == "skip":
        led(around, (100, 110), (111, 120))
    else:
        around.input.origin += 11 * BATCH
        led(around, (100, 120))
    assert_same(weights(trainer), weights(around))


SERVED, APART, TOGETHER = object.__new__(ServedStrategy), True, False


@pytest.mark.parametrize(
    ("settings", "strategy", "apart", "says"),
    [
        (
            {"on_nonfinite": "skip"},
            None,
            APART,
            r"^`Trainer\.on_nonfinite = 'skip'` is .*`Trainer\.local_steps`.*'rollb",
        ),
        ({"on_spike": "rollback"}, None, APART, r"^`Trainer\.on_spike` is .*`Trainer\.local_steps`.* leave it out"),
        ({"on_nonfinite": "skip"}, SERVED, TOGETHER, r"^`Trainer\.on_nonfinite = 'skip'` is .*`@parameter_server\(\)`"),
        ({"on_nonfinite": "rollback"}, SERVED, TOGETHER, r"^`Trainer\.on_nonfinite = 'rollback'` is .*`@parameter_ser"),
        ({"on_spike": "skip"}, SERVED, TOGETHER, r"^`Trainer\.on_spike` is .*`@parameter_server\(\)`.*`@mirrored\(\)`"),
    ],
)
def test_where_steps_are_not_taken_together_a_policy_is_refused_by_name(settings, strategy, apart, says):
    nothing = dict.fromkeys(("on_spike", "max_skips", "max_rollbacks", "spike_factor"))
    policies = Policies(**{"on_nonfinite": "raise", **nothing, **settings})
    with pytest.raises(ConfigurationError, match=says):
        policies.skipping(SimpleNamespace(exchange=SimpleNamespace(apart=apart)), SimpleNamespace(strategy=strategy))
