"""`benchmarks.streams`: the measurement at a small size, and the page's bounds on its numbers."""

import pytest

from benchmarks import streams
from benchmarks.pages import rows_in
from tests.commands import CHECKOUT


@pytest.mark.long
@pytest.mark.parametrize("name", streams.STREAMS)
def test_stream_has_a_row(name, monkeypatch):
    monkeypatch.setattr(streams, "STEPS", 2)
    found = dict(zip(streams.HEAD, streams.measured(name, pairs=2, chunks=1), strict=True))
    assert float(found["ratio"]) > 0.0
    low, high = map(float, found["95 %"].split(" to "))
    assert low <= high
    assert found["an epoch begins in"].endswith(" ms")


def test_page_has_the_cost_of_streams_relative_to_tf_data():
    lines = rows_in((CHECKOUT / "benchmarks" / "notes" / "streams.md").read_text(), "streams")
    rows = [line for line in lines if len(line) == len(streams.HEAD)]  # the machine's line stands below
    assert [row[0] for row in rows] == list(streams.STREAMS)
    for _, ours, alone, *_ in rows:
        assert float(ours.removesuffix(" ms")) - float(alone.removesuffix(" ms")) <= 2.0
    assert all(float(row[3]) <= 1.1 for row in rows[1:])  # all but the cheapest dataset
