"""A strategy's backend is found by its type."""

import pytest
import tensorflow as tf

from core.distribution import Backend, backend_of, exchange_of, is_strategy, made_strategy, register
from core.engine import assemble
from core.random import Rng
from tests.toys import Line


class Plan:
    def __init__(self, devices=1):
        self.devices = devices


class Planned:
    def __init__(self, plan):
        self.plan = plan


@register(Planned, plan=Plan)
class PlannedBackend(Backend):
    how = "as planned"


class Narrower(Planned):
    pass


def test_backend_is_that_of_the_nearest_registered_class():
    assert type(backend_of(tf.distribute.OneDeviceStrategy("CPU:0"))) is Backend
    assert backend_of(Narrower(Plan())).how == "as planned"
    with pytest.raises(AssertionError, match=r"`Plan` has no backend: `@register\(Plan\)` gives it one"):
        backend_of(Plan())


def test_assembly_keeps_its_backend():
    assembly = assemble(lambda: Line(rng=Rng.from_seed(0)), tf.distribute.OneDeviceStrategy("CPU:0"))
    assert type(assembly.backend) is Backend
    assert assembly.backend is assembly.backend


def test_old_name_of_a_backend_s_exchange_warns():
    strategy = tf.distribute.OneDeviceStrategy("CPU:0")
    with pytest.warns(FutureWarning, match=r"`backend_of\(strategy\)\.exchange\(\)` now: call that, for 0\.4 has"):
        exchange = exchange_of(strategy)
    assert type(exchange) is type(backend_of(strategy).exchange())


def test_plan_becomes_a_strategy():
    strategy = made_strategy(Plan(3))
    assert (type(strategy), strategy.plan.devices) == (Planned, 3)
    assert made_strategy(strategy) is strategy
    assert [is_strategy(x) for x in (Plan(), strategy, tf.distribute.OneDeviceStrategy("CPU:0"), "mirrored", None)] == [
        True,
        True,
        True,
        False,
        False,
    ]
