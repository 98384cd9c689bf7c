"""Speeds that a dry run measures, and the least time of an operation on them."""

import math
from types import SimpleNamespace

from trainers.dry_run import speeds


def test_device_is_measured_in_each_way(monkeypatch):
    monkeypatch.setattr(speeds, "MOST_SECONDS", 0.05)
    monkeypatch.setattr(speeds, "EACH_SECONDS", 0.003)
    monkeypatch.setitem(speeds.best_seconds.__kwdefaults__, "within", 0.005)
    found = speeds.measured_speeds(["CPU:0", "CPU:1"])
    assert all(math.isfinite(x) and x > 0.0 for x in found)


def test_operation_takes_as_long_as_its_arithmetic_or_its_bytes():
    given = speeds.Speeds(peak=100.0, bytes=10.0, near=1000.0, starts=math.inf, steps=math.inf, turns=1.0)
    large = 10 * speeds.CACHED
    for operations, moved, seconds in ((500.0, 0, 5.0), (1.0, 2000, 2.0), (1.0, large, large / 10.0)):
        took = given.supposed(SimpleNamespace(operations=operations, bytes=moved))
        assert [*took] == [seconds, seconds]
