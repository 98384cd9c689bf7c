"""`parameter_server` refuses wrong settings, and spreads variables over its servers."""

from types import SimpleNamespace

import pytest
import tensorflow as tf

from core.distribution.served_strategy import ServedStrategy, parameter_server
from core.errors import ConfigurationError
from core.optimizers import Optimizer, adam
from core.testing import on_virtual_cpus


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"max_staleness": -1}, "`parameter_server.max_staleness` is -1"),
        ({"max_staleness": 1.0}, "`parameter_server.max_staleness` is 1.0"),
        ({"max_staleness": False}, "`parameter_server.max_staleness` is False"),
        ({"overdue": 0.0}, "`parameter_server.overdue` is 0.0"),
        ({"overdue": None}, "`parameter_server.overdue` is None"),
        ({"meeting_deadline": float("nan")}, "`parameter_server.meeting_deadline` is nan"),
    ],
)
def test_parameter_server_refuses_wrong_settings(arguments, says):
    with pytest.raises(ConfigurationError, match=says):
        parameter_server(**arguments)


def test_without_a_crew_it_says_how_to_start_one(monkeypatch):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    with pytest.raises(ConfigurationError, match=r"python -m trainers.launch --workers=2 --ps=1"):
        parameter_server()


def test_each_variable_lies_on_the_server_that_holds_least_and_its_slots_beside_it():
    servers = on_virtual_cpus(2).extended.worker_devices
    strategy = SimpleNamespace(_bytes=dict.fromkeys(servers, 0))
    with ServedStrategy.scope(strategy):
        parameters = {str(i): tf.Variable(tf.zeros([size])) for i, size in enumerate([6, 3, 2, 2, 4])}
        optimizer = Optimizer(adam(0.1), parameters)
    assert [servers.index(variable.server) for variable in parameters.values()] == [0, 1, 1, 1, 0]
    for slots in optimizer.slots.values():
        assert {path: slot.server for path, slot in slots.items()} == {k: v.server for k, v in parameters.items()}
