"""Memory limits of a process: its machine's or its container's."""

import os

import pytest

from core import machine


@pytest.mark.parametrize(
    ("limit", "expected"),
    [("1073741824\n", 1 << 30), ("max\n", None), (f"{1 << 60}\n", None), (None, None)],
    ids=["limited", "unlimited", "more than there is", "no container"],
)
def test_a_container_may_leave_less_than_the_machine_has(limit, expected, tmp_path, monkeypatch):
    if limit is not None:
        (tmp_path / "memory.max").write_text(limit)
    monkeypatch.setattr(machine, "CONTAINER", tmp_path / "memory.max")
    whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert machine.machine_memory() == (expected or whole)
