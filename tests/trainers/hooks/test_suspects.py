"""What hooks suspect: from which size on, twice in a row before they say so, and across a crash as well."""

import json
from types import SimpleNamespace

import pytest

from core.data import digits
from trainers.hooks import Activations, Norms
from trainers.hooks.divergence import Divergence
from trainers.hooks.norms import unlikely
from trainers.hooks.standard import LogMetrics

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
        (norms(update=0.0), None),  # of a rate that is zero, or what is frozen
        (norms(update=0.0, gradient=0.0), IS_DEAD),
    ],
)
def test_norms_are_suspicious_from_a_size_on(figures, says):
    found = dict(unlikely(figures)).values()
    assert [says in text for text in found] == ([True] if says else [])


def looking(hook, figures):
    """Has the hook look at these; returns what it warns of."""
    told, source = [], digits("test")
    hook._look = lambda batch: figures  # of `Activations`, in place of an evaluation
    run = SimpleNamespace(
        step=1,
        norms=lambda: figures,
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
def test_suspects_are_told_when_seen_twice_in_a_row_also_across_a_crash(hook, bad, good):
    first = hook(10)
    assert not looking(first, bad) + looking(first, good) + looking(first, bad)
    resumed = hook(10)
    resumed.load(json.loads(json.dumps(first.state())))
    assert len(looking(resumed, bad)) == 1
    assert not looking(hook(10), bad)


@pytest.mark.parametrize(("data_wait", "warned"), [(0.15, False), (0.25, True)])
def test_waiting_for_data_is_told_from_a_fifth_of_the_time_on(data_wait, warned):
    told = []
    telemetry = SimpleNamespace(write=lambda *_, **__: None, warn_once=told.append)
    figures = {"loss": 1.0, "data_wait": data_wait}
    LogMetrics(10, Divergence())(SimpleNamespace(step=10, take_figures=lambda: figures, telemetry=telemetry))
    assert ["waiting for data" in text for text in told] == [True] * warned
