"""`benchmarks.input_wait`: both measurements at a small size, and a row for each in the page."""

import pytest

from benchmarks import input_wait
from benchmarks.pages import rows_in
from tests.commands import CHECKOUT, passed


@pytest.mark.long
def test_files_of_both_sizes_are_measured_beside_their_limit(tmp_path, monkeypatch):
    for name, value in (("SIDE", 64), ("FILES", 8), ("CHUNK", 8), ("BATCH", 4), ("SECONDS", 0.01)):
        monkeypatch.setattr(input_wait, name, value)
    own, resized = (dict(zip(input_wait.HEAD_JPEG, row, strict=True)) for row in input_wait.files(tmp_path, 1))
    assert own["JPEG files"] == "of the size that they have"
    assert resized["JPEG files"] == "resized to 32x32"
    for row in (own, resized):
        assert float(row["images/s"].replace(",", "")) > 0.0
        assert float(row["time of the limit"].removesuffix("x")) > 0.0


@pytest.mark.long
def test_run_reports_how_long_it_waits(monkeypatch):
    monkeypatch.setattr(input_wait, "IN_MEMORY", {"softmax": ("softmax", 30, 10, ())})
    monkeypatch.setattr(input_wait.subprocess, "run", lambda words, **_: passed(*words[3:], cwd=CHECKOUT))
    ((what, step, waits),) = input_wait.in_memory()
    assert (what, step[-3:], waits[-1]) == ("softmax", " ms", "%")


def test_page_has_a_row_for_each_measurement():
    page = (CHECKOUT / "benchmarks" / "notes" / "performance.md").read_text()
    for name, head, rows in (
        ("input_wait", input_wait.HEAD_IN_MEMORY, list(input_wait.IN_MEMORY)),
        ("jpeg", input_wait.HEAD_JPEG, ["of the size that they have", "resized to 128x128"]),
    ):
        assert [row[0] for row in rows_in(page, name) if len(row) == len(head)] == rows
