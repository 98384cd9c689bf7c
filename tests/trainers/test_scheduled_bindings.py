"""A gin file may bind a schedule to each number of each optimizer."""

import pytest

from core.optimizers import Schedule
from tests.conformance.test_scheduled_numbers import numbers_of, of_transforms
from trainers.gin_audit import registry


@pytest.mark.parametrize("part", of_transforms())
def test_number_may_be_a_schedule_in_gin(part: str) -> None:
    (selector,) = (name for name in registry.configurables() if name.startswith("core.") and name.endswith(f".{part}"))
    signature = registry.signature(selector)
    for name in numbers_of(part):
        assert signature.parameters[name].hint == float | Schedule
