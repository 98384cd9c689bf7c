"""Asynchronous training refuses unsuitable tasks before the first step."""

from types import SimpleNamespace

import pytest
import tensorflow as tf

from core.engine.served_checks import check_served
from core.errors import ConfigurationError
from core.module import Module
from core.optimizers import adamw, chain, clip_by_global_norm, ema, sgd
from core.task import ONE_DEVICE, Compute, Task, Update


class Net(Module):
    def __init__(self):
        super().__init__()
        self.w = tf.Variable(1.0)


class Mine(Task):
    def __init__(self, *phases, one_device=()):
        super().__init__()
        self.one_device, self._phases = one_device, phases

    def phases(self):
        return list(self._phases)


def update(optimizer):
    return Update("net", loss=lambda batch, rng: None, trains=Net(), optimizer=optimizer)


def check(*phases, divide=False, placements={}, one_device=(), own=()):  # noqa: B006
    strategy = SimpleNamespace(divide_by_staleness=divide)
    check_served(strategy, Mine(*phases, one_device=own), phases, placements=placements, one_device=one_device)


def test_served_task_that_fits_is_not_refused():
    check(update(adamw(1e-3)))
    check(update(chain(sgd(0.1, momentum=0.9), ema(0.9))), divide=True)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"placements": {"net": ONE_DEVICE}}, "`Experiment.placements` places `net`"),
        ({"one_device": ["net"]}, "`Experiment.one_device` names `net`"),
        ({"own": ("net",)}, "`Mine.one_device` names `net`"),
    ],
)
def test_places_are_refused(arguments, says):
    with pytest.raises(ConfigurationError, match=says):
        check(update(sgd(0.1)), **arguments)


def test_history_is_refused():
    pool = Compute("pool", fn=lambda batch, rng: ({}, {}), state=Net())
    with pytest.raises(ConfigurationError, match=r"phase `pool` of `Mine` keeps history \(`Compute\(state=...\)`\)"):
        check(pool, update(sgd(0.1)))


@pytest.mark.parametrize("optimizer", [adamw(1e-3), chain(clip_by_global_norm(1.0), sgd(0.1))])
def test_a_rule_that_is_not_linear_is_not_divided(optimizer):
    with pytest.raises(ConfigurationError, match=r"the optimizer of phase `net` .* isn't linear"):
        check(update(optimizer), divide=True)
