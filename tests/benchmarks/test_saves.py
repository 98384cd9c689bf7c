"""`benchmarks.saves`: the measurement at a small size, and the page's bounds on its numbers."""

import contextlib
import math
import threading
from types import SimpleNamespace

import pytest

from benchmarks import saves
from benchmarks.pages import rows_in, table, written
from core.checkpoint import saves as writing
from tests.commands import CHECKOUT

SMALL = {"examples": 8, "sizes": [64, 8, 10], "steps": 4}
PAGE = CHECKOUT / "docs" / "checkpoints.md"


@pytest.mark.long
def test_rows_say_how_long_the_loop_waits_and_steps_take():
    rows = saves.measured(2, **SMALL)
    assert [row[0] for row in rows] == ["meanwhile", "in the loop"]
    for row in rows:
        cells = dict(zip(saves.HEAD, row, strict=True))
        assert 0.0 < number(cells["of its time"]) <= 100.0
        assert number(cells["other steps take"]) > 0.0
        low, high = map(float, cells["95 %"].split(" to "))
        assert low <= high


@pytest.mark.long
def test_waiting_is_the_save_in_the_loop_and_what_the_next_would_wait_for(tmp_path, monkeypatch):
    """Uses a clock by which a write and the steps of a turn take a second each; waiting for a write ends it."""
    now, waited_for = [0.0], threading.Event()

    def taking_a_second(function):
        def call(*arguments):
            now[0] += 1.0
            return function(*arguments)

        return call

    write = taking_a_second(writing.write_parts)

    def write_parts(*arguments):
        assert waited_for.wait(60.0)
        return write(*arguments)

    def settle():
        waited_for.set()
        real_settle()
        waited_for.clear()

    side = saves.Side(tmp_path, **SMALL)
    real_settle = side.trainer.settle
    monkeypatch.setattr(saves, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    monkeypatch.setattr(writing, "write_parts", write_parts)
    monkeypatch.setattr(side.trainer, "settle", settle)
    monkeypatch.setattr(side.trainer, "advance", taking_a_second(side.trainer.advance))
    turns = [{"in_loop": False}, {"in_loop": True}, {"saves": False}]
    assert [side.seconds(**turn) for turn in turns] == [1.0, 1.0, 1.0]
    assert (side.waits, side.shares) == ([1.0, 1.0, 0.0], [0.5, 0.5, 0.0])


def test_model_has_25_million_weights():
    weights = sum(before * after + after for before, after in zip(saves.SIZES, saves.SIZES[1:], strict=False))
    assert math.isclose(weights, 25e6, rel_tol=0.02)


def test_page_promises_how_long_the_loop_waits():
    check_promise(PAGE.read_text())


def test_page_whose_loop_waits_longer_is_found():
    page = "<!-- table: saves -->\n<!-- end of saves -->\n"
    for share, step, holds in (("3.0%", "150 ms", True), ("3.1%", "150 ms", False), ("1.0%", "50 ms", False)):
        rows = [
            [name, step, "0.45 s", share, "1.1 times as long", "1.0 to 1.2"] for name in ("meanwhile", "in the loop")
        ]
        found = written(page, {"saves": f"{table(saves.HEAD, rows)}\nMedians of 6 turns.\n"})
        with contextlib.nullcontext() if holds else pytest.raises(AssertionError):
            check_promise(found)


def check_promise(page):
    rows = [row for row in rows_in(page, "saves") if len(row) > 1]  # the machine's line stands below
    found = {row[0]: dict(zip(saves.HEAD, row, strict=True)) for row in rows}
    assert set(found) in (set(), {"meanwhile", "in the loop"})
    for name, cells in found.items():
        assert 120 <= number(cells["a step"]) <= 200  # milliseconds
        assert name != "meanwhile" or number(cells["of its time"]) <= 3.0


def number(cell):
    return float(cell.split()[0].removesuffix("%"))
