"""The table of operations fits a page for any input, and keeps every operation."""

import io

import pytest
from rich.console import Console

from core.estimate import BACKWARD, FORWARD, UPDATE, Place
from trainers.dry_run.operations import ROWS, operations_table


def told(operations, *, alike=False):
    """Returns the cells of the rows by the first."""
    page = io.StringIO()
    Console(width=100, file=page).print(operations_table(operations, 2, alike=alike))
    lines = [line for line in page.getvalue().splitlines() if line.startswith("│")]
    cells = [[cell.strip() for cell in line.strip("│").split("│")] for line in lines]
    return {first: rest for first, *rest in cells}


def test_each_module_has_a_row_where_there_are_few():
    operations = {
        Place("net/layers/10", FORWARD): 80,
        Place("net/layers/9", FORWARD): 20,
        Place("net/layers/9", BACKWARD): 40,
        Place("", BACKWARD): 8,
        Place("", UPDATE): 4,
    }
    found = told(operations)
    assert list(found) == ["net/layers/9", "net/layers/10", "outside of modules", "updates", "together"]
    assert found["net/layers/9"] == ["10", "30"]
    assert found["updates"] == ["0", "2"]
    assert found["together"] == ["50", "76"]


@pytest.mark.parametrize(
    ("depth", "expected"),
    [
        (30, {"net/blocks/*/up", "net/blocks/*/down"}),  # of each number
        (1, {"net/blocks/0/up", "net/blocks/0/down"}),
    ],
)
def test_many_blocks_are_reported_together(depth, expected):
    operations = {Place(f"net/blocks/{i}/{name}", FORWARD): 2 for i in range(depth) for name in ("up", "down")}
    found = told(operations)
    assert set(found) == {*expected, "together"}
    assert found["together"] == [str(2 * depth)] * 2
    assert "net/blocks/*/up" in told(operations, alike=True)


def test_modules_too_deep_for_a_page_are_counted_above():
    operations = {Place(f"a/{'bc'[i % 2]}/part_{i}", FORWARD): 2 for i in range(ROWS + 1)}
    assert told(operations) == {"a/b": ["13", "13"], "a/c": ["12", "12"], "together": ["25", "25"]}
