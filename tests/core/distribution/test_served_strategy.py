"""What `parameter_server` takes, before it waits for anybody."""

import pytest

from core.distribution.served_strategy import parameter_server
from core.errors import ConfigurationError


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
def test_what_it_cannot_take_is_refused(arguments, says):
    with pytest.raises(ConfigurationError, match=says):
        parameter_server(**arguments)


def test_without_a_crew_it_says_how_to_start_one(monkeypatch):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    with pytest.raises(ConfigurationError, match=r"python -m trainers.launch --workers=2 --ps=1"):
        parameter_server()
