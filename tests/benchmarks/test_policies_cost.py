"""`benchmarks.policies`: the measurement at a small size, and a row for each policy in the page."""

import gin
import pytest

from benchmarks import policies
from benchmarks.pages import rows_in
from tests.commands import CHECKOUT


@pytest.fixture(autouse=True)
def no_bindings_are_left():
    yield
    gin.clear_config()


@pytest.mark.long
def test_policies_have_a_row_each(monkeypatch):
    few = ["`raise`", "`skip`, and `on_spike`"]
    monkeypatch.setattr(policies, "POLICIES", {name: policies.POLICIES[name] for name in few})
    rows = [dict(zip(policies.HEAD, row, strict=True)) for row in policies.measured("digits_mlp", 2, steps=4)]
    assert [row["policy"] for row in rows] == few
    assert rows[0]["beside `raise`"] == "1.000 times as long"
    for row in rows:
        assert float(row["a step"].removesuffix(" µs")) > 0.0
        low, high = map(float, row["95 %"].split(" to "))
        assert 0.0 < low <= high


def test_page_has_each_policy_in_each_experiment_or_none():
    rows = rows_in((CHECKOUT / "benchmarks" / "notes" / "bad_steps.md").read_text(), "policies")
    found = [(row[0], row[1]) for row in rows if len(row) > 1]
    assert found in ([], [(f"`{name}`", policy) for name in policies.CONFIGURATIONS for policy in policies.POLICIES])
