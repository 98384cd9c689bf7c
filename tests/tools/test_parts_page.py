"""`docs/parts.md` lists every public part; `python -m tools.conformance` measures its numbers."""

import inspect
import re

from core import layers, losses, metrics, optimizers
from tests.conformance.layer_rows import ROWS_OF_LAYERS
from tests.conformance.loss_rows import ROWS_OF_LOSSES
from tests.conformance.metric_rows import ROWS_OF_METRICS
from tests.conformance.optimizer_rows import ROWS
from tools.conformance.__main__ import PAGE
from tools.conformance.calls import calls
from tools.conformance.notes import NOTES
from trainers.gin_audit import registry


def test_parts_page_has_a_line_for_every_row():
    listed = set(re.findall(r"^\| ([^|]+) \|", PAGE.read_text(), re.MULTILINE)) - {"part", "---"}
    parts = {row.part for row in (*ROWS_OF_LAYERS, *ROWS_OF_LOSSES, *ROWS_OF_METRICS)} | {row.id for row in ROWS}
    assert listed == parts


def test_parts_page_has_every_note():
    lines = {line.split(" | ")[0].removeprefix("| "): line for line in PAGE.read_text().splitlines()}
    for part, note in NOTES.items():
        assert note in lines[part], f"run `python -m tools.conformance`: {part}'s note isn't there"


def test_parts_page_has_every_signature():
    page = PAGE.read_text()
    for package, rows in ((layers, ROWS_OF_LAYERS), (losses, ROWS_OF_LOSSES), (metrics, ROWS_OF_METRICS)):
        for line in calls(package, (row.part for row in rows)).splitlines():
            assert line in page, f"run `python -m tools.conformance`: `{line}` isn't there"


def test_arguments_of_optimizers_are_in_the_list_of_bindings():
    listed = {selector.rpartition(".")[2] for selector in registry.configurables()}  # `test_site` compares the page
    assert {row.id.partition(":")[0] for row in ROWS} <= listed


def test_docstrings_exist_for_every_public_part():
    for package in (layers, losses, metrics, optimizers):
        for name in package.__all__:
            part = getattr(package, name)
            makes = inspect.isfunction(part) or inspect.isclass(part)  # a type alias can't have a docstring
            assert not makes or (part.__doc__ or "").strip(), f"{package.__name__}.{name} has no docstring"
