"""`benchmarks.uploads`: the measurement at a small size, and the page's bound on its wait."""

import pytest

from benchmarks import uploads
from benchmarks.pages import rows_in
from tests.commands import CHECKOUT

SMALL = {"examples": 8, "sizes": [64, 8, 10], "steps": 4}
PAGE = CHECKOUT / "docs" / "checkpoints.md"


@pytest.mark.long
def test_rows_compare_a_run_that_uploads_with_one_that_does_not():
    rows = uploads.measured(2, **SMALL)
    assert [row[0] for row in rows] == ["uploaded", "local"]
    low, high = map(float, rows[0][-1].split(" to "))
    assert 0.0 < low <= float(rows[0][-2].split()[0]) <= high


def test_the_loop_of_the_page_waits_three_percent_at_most():
    shares = [row[3] for row in rows_in(PAGE.read_text(), "uploads") if len(row) > 1]  # the machine stands below
    assert len(shares) == 2
    assert all(float(share.rstrip("%")) <= 3.0 for share in shares)
