"""A run that overfits warns of it once, also across a crash; one that doesn't never warns."""

import json

import pytest

from core.telemetry import Telemetry, Warned
from tests.toys import point_source
from tests.trainers.trainer_lab import HELD_OUT, Crash, make, newest
from trainers.hooks.divergence import Divergence

RISING = [(1.0, 1.0), (0.8, 0.9), (0.6, 1.2), (0.5, 1.3), (0.4, 1.4)]  # training, held out


def warnings(losses):
    divergence = Divergence()
    for step, (training, held_out) in enumerate(losses):
        divergence.trained({"loss": training})
        yield divergence.held_out(step, {"loss": held_out})


def test_divergence_is_told_at_the_second_worse_evaluation_in_a_row():
    found = list(warnings(RISING))
    assert [text is not None for text in found] == [False, False, False, True, True]
    assert "from 0.9 at step 1 to 1.3" in found[3]
    assert "from 0.8 to 0.5" in found[3]


def test_evaluations_that_are_nan_hide_none_of_the_others():
    found = list(warnings([(1.0, float("nan")), *RISING[:3], (0.55, float("nan")), *RISING[3:]]))
    assert [text is not None for text in found] == [False, False, False, False, False, True, True]


@pytest.mark.parametrize(
    "losses",
    [
        [(1.0, 1.0), (0.9, 0.9), (0.8, 0.8)],
        [(1.0, 1.0), (0.8, 1.05), (0.6, 1.09), (0.4, 1.1)],  # within what chance does
        [(1.0, 1.0), (1.1, 1.5), (1.2, 1.6)],  # training gets worse as well: that is something else
        [(1.0, 1.0), (0.8, 1.5), (0.6, 0.9), (0.5, 1.5)],  # once, and not in a row
    ],
)
def test_divergence_is_not_told_without_reason(losses):
    assert list(warnings(losses)) == [None] * len(losses)


def test_divergence_needs_a_figure_named_loss():
    divergence = Divergence()
    divergence.trained({"g/loss": 1.0})
    assert divergence.held_out(1, {"quality/score": 1.0}) is None
    assert divergence.state() == {}


def test_divergence_is_kept_between_two_evaluations_that_are_worse():
    first, second = Divergence(), Divergence()
    for step, (training, held_out) in enumerate(RISING[:3]):
        first.trained({"loss": training})
        assert first.held_out(step, {"loss": held_out}) is None
    second.load(json.loads(json.dumps(first.state())))
    second.trained({"loss": RISING[3][0]})
    assert "from 0.9 at step 1 to 1.3" in second.held_out(3, {"loss": RISING[3][1]})


def test_run_on_random_targets_is_warned_once_across_a_crash(tmp_path):
    def start():
        often = dict.fromkeys(("chunk_steps", "log_every", "evaluate_every", "checkpoint_every"), 10)
        return make(tmp_path, source=point_source(5), eval_source=HELD_OUT, steps=60, global_batch_size=5, **often)

    trainer, path = start(), tmp_path / "warnings.jsonl"
    trainer.hooks.append(Crash(40))
    with pytest.raises(RuntimeError, match="crash"):
        trainer.train(Telemetry([], Warned(path, 0)))
    trainer = start()
    trainer.state.restore(newest(trainer))
    trainer.train(Telemetry([], Warned(path, trainer.step)))
    assert path.read_text().count("by heart") == 1
