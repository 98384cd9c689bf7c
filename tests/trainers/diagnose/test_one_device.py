"""`--mode=diagnose` on one device names an artificial bottleneck, and none if there is none."""

import re

import pytest

from tests.commands import CONFIGS, refused
from tests.trainers.diagnose.lab import adds_up, diagnose
from trainers.settings import Settings


@pytest.mark.long
def test_a_slow_source_is_named_and_parallel_calls_are_shown_to_hide_it(tmp_path):
    said, found = diagnose(tmp_path, "Sleepy.seconds = 0.05\nTrainer.chunk_steps = 1")
    assert found["verdict"]["kind"] == "input", said
    (tried,) = found["tried"]
    assert tried["line"].startswith("Trainer.parallel_calls = ")
    assert tried["times_as_fast"] > 2, said
    point = found["points"][-1]
    assert adds_up(point), said
    assert point["parts"]["input wait"] > 0.5 * 0.05
    assert f"input-bound: {100 * found['verdict']['share']:.0f} % of each step waits for examples of `sleepy`" in said
    # The line binds a setting, and the diagnosis leaves nothing else behind.
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == ["diagnosis.json", "diagnosis.svg"]
    calls = int(re.fullmatch(r"Trainer.parallel_calls = (\d+)", tried["line"])[1])
    assert Settings(steps=1, global_batch_size=1, parallel_calls=calls).parallel_calls == calls > 1


@pytest.mark.long
def test_a_slow_hook_is_named_and_calling_it_less_often_helps(tmp_path):
    bindings = "Trainer.hooks = [@Nap()]\nNap.seconds = 0.5\nNap.every = 10\nTrainer.chunk_steps = 5"
    said, found = diagnose(tmp_path, bindings)
    assert found["verdict"]["kind"] == "host", said
    assert "`Nap.every`" in found["verdict"]["sentence"]
    (tried,) = found["tried"]
    assert tried["line"].startswith("Nap.every = ")
    assert tried["times_as_fast"] > 2, said
    assert adds_up(found["points"][-1]), said
    assert found["points"][-1]["hooks"]["Nap.every"] > 0.9 * 0.5 / 10


@pytest.mark.long
def test_sleeps_in_all_parts_at_once_are_found_where_they_are(tmp_path):
    """None can be shorter, and together they are no longer than the step."""
    planted = {"forward": 0.04, "backward": 0.06, "update": 0.08, "host work": 0.1}
    bindings = f"""
        Planted.rests = [{planted["forward"]}, {planted["backward"]}]
        Planted.optimizer = @late()
        late.seconds = {planted["update"]}
        Trainer.chunk_steps = 1
        Trainer.hooks = [@Nap()]
        Nap.every = 5
        Nap.seconds = {5 * planted["host work"]}
    """
    said, found = diagnose(tmp_path, bindings)
    point = found["points"][-1]
    assert adds_up(point), said
    for part, seconds in planted.items():
        assert point["parts"][part] > 0.8 * seconds, (part, said)


@pytest.mark.long
def test_a_tiny_batch_is_named(tmp_path):
    said, found = diagnose(
        tmp_path, "Trainer.global_batch_size = 1\nPlanted.rests = [0.02, 0.02]\nTrainer.chunk_steps = 5"
    )
    assert found["verdict"]["kind"] == "batch", said
    assert found["tried"][0]["line"].startswith("Trainer.global_batch_size = ")
    assert found["tried"][0]["times_as_fast"] > 2, said


@pytest.mark.long
def test_no_bottleneck_is_named_where_there_is_none(tmp_path):
    said, found = diagnose(tmp_path, "Planted.row_seconds = 0.0004\nTrainer.chunk_steps = 5")
    assert found["verdict"]["kind"] == "none", said
    assert not found["tried"]
    assert adds_up(found["points"][-1]), said


def test_steps_that_have_no_such_parts_are_refused(tmp_path):
    files = [f"--gin_file={CONFIGS / name}" for name in ("digits_linear.gin", "runtime/local_steps.gin")]
    says = ["`--mode=diagnose` measures steps", "`Trainer.local_steps`"]
    refused(*files, "--mode=diagnose", cwd=tmp_path, exit_code=2, says=says)
