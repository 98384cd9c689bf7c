"""Warnings of hooks, such as overfitting: after two findings in a row, once, and across a crash as well."""

import json
from types import SimpleNamespace

import pytest

from core.data import digits
from core.telemetry import Telemetry, Warned
from tests.toys import point_source
from tests.trainers.trainer_lab import HELD_OUT, Crash, make, newest
from trainers.hooks import Activations, Norms
from trainers.hooks.norms import unlikely
from trainers.loop.run_hooks import Divergence, LogMetrics

EXPLODES, VANISHES, IS_DEAD = "explode", "float32 rounds them away", "are zero"


def norms(*, update, gradient=1.0):
    return {"gradient/a": gradient, "weight/a": 1.0, "update/a": update}


@pytest.mark.parametrize(
    ("figures", "says"),
    [
        (norms(update=0.31), EXPLODES),
        (norms(update=0.29), None),
        (norms(update=2.0**-23), None),
        (norms(update=2.0**-25), VANISHES),
        (norms(update=0.0), None),  # with a rate of zero, or frozen
        (norms(update=0.0, gradient=0.0), IS_DEAD),
    ],
)
def test_norms_are_suspicious_from_a_size_on(figures, says):
    found = dict(unlikely(figures)).values()
    assert [says in text for text in found] == ([True] if says else [])


def looking(hook, figures):
    """Makes the hook examine these; returns its warnings."""
    told, source = [], digits("test")
    hook._look = lambda batch: figures  # of `Activations`, in place of an evaluation
    hook._watch = SimpleNamespace(norms=lambda *_, **__: figures)  # of `Norms`, in place of a step
    run = SimpleNamespace(
        step=1,
        next_chunk=dict,
        input=SimpleNamespace(chunk_steps=1),
        averaged=SimpleNamespace(update=lambda: None),
        experiment=SimpleNamespace(shown_source=source),
        telemetry=SimpleNamespace(write=lambda *_, **__: None, warn_once=told.append),
    )
    hook(run)
    return told


@pytest.mark.parametrize(
    ("hook", "bad", "good"),
    [
        (Norms, norms(update=0.5), norms(update=0.1)),
        (Activations, {"given/a/dead": 0.6}, {"given/a/dead": 0.4}),
    ],
)
def test_suspects_are_reported_when_seen_twice_in_a_row_also_across_a_crash(hook, bad, good):
    first = hook(10)
    assert not looking(first, bad) + looking(first, good) + looking(first, bad)
    resumed = hook(10)
    resumed.load(json.loads(json.dumps(first.state())))
    assert len(looking(resumed, bad)) == 1
    assert not looking(hook(10), bad)


@pytest.mark.parametrize(("data_wait", "warned"), [(0.15, False), (0.25, True)])
def test_waiting_for_data_is_reported_from_a_fifth_of_the_time_on(data_wait, warned):
    told = []
    telemetry = SimpleNamespace(write=lambda *_, **__: None, warn_once=told.append)
    figures = {"loss": 1.0, "data_wait": data_wait}
    LogMetrics(10, Divergence())(SimpleNamespace(step=10, take_figures=lambda: figures, telemetry=telemetry))
    assert ["waiting for data" in text for text in told] == [True] * warned


RISING = [(1.0, 1.0), (0.8, 0.9), (0.6, 1.2), (0.5, 1.3), (0.4, 1.4)]  # training, held out


def warnings(losses):
    divergence = Divergence()
    for step, (training, held_out) in enumerate(losses):
        divergence.trained({"loss": training})
        yield divergence.held_out(step, {"loss": held_out})


def test_divergence_is_reported_at_the_second_worse_evaluation_in_a_row():
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
def test_divergence_is_not_reported_without_reason(losses):
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


@pytest.mark.long
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
    assert path.read_text().count("overfits") == 1
