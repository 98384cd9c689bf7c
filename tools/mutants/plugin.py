"""Pytest plugin for forks of `tools.mutants.zygote`: runs chosen tests in the given order, and records outcomes."""

import json
import resource
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import pytest


def seconds() -> float:
    """Returns the processor seconds of this process and of the children that it has waited for."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(x.ru_utime + x.ru_stime for x in used)


class Notes:
    """Writes a line of JSON per test: id, outcome, processor seconds, mark `long`, shared fixtures.

    With `switch`, each test and each shared fixture is a coverage context.
    """

    def __init__(self, file: IO[str], request: Mapping[str, Any], switch: Callable[[str], None] | None) -> None:
        self.file, self.switch, self.without = file, switch, frozenset(request["without"])
        tests = request["tests"]
        self.order = None if tests is None else {test: at for at, test in enumerate(tests)}
        self.failed: str | None = None
        self.skipped = False
        self.shared = list[str]()
        self.now = ""

    def note(self, **line: Any) -> None:
        print(json.dumps(line), file=self.file, flush=True)

    def become(self, context: str) -> None:
        self.now = context
        if self.switch:
            self.switch(context)

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        items[:] = [item for item in items if item.nodeid not in self.without]
        if (order := self.order) is not None:
            items[:] = sorted((x for x in items if x.nodeid in order), key=lambda x: order[x.nodeid])

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            self.note(collected=report.nodeid, failed=str(report.longrepr)[-500:])

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: Any) -> Iterator[None]:
        self.failed, self.skipped, self.shared = None, False, []
        self.become(item.nodeid)
        begun, wall = seconds(), time.monotonic()
        self.note(begun=item.nodeid)
        try:
            return (yield)
        finally:
            self.note(
                id=item.nodeid,
                failed=self.failed,
                skipped=self.skipped,
                seconds=round(seconds() - begun, 3),
                wall=round(time.monotonic() - wall, 3),
                long=item.get_closest_marker("long") is not None,
                fixtures=self.shared,
            )
            self.become("")

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any) -> Iterator[Any]:
        outer, name = self.now, _name(fixturedef)
        if fixturedef.scope == "function" or not name:
            return (yield)
        self.become(name)
        try:
            return (yield)
        finally:
            self.become(outer)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_teardown(self, item: Any) -> None:
        used = getattr(item._request, "_fixture_defs", {}).values()
        self.shared = sorted({_name(x) for x in used if x.scope != "function"} - {""})

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed:
            self.failed = self.failed or str(report.longrepr)[-500:]
        self.skipped = self.skipped or report.skipped


def _name(fixture: Any) -> str:
    """Returns a shared fixture's name in contexts; pytest's own fixtures and plugins' have none."""
    return f"fixture {fixture.baseid}::{fixture.argname}" if fixture.baseid else ""


def run(request: dict[str, Any], switch: Callable[[str], None] | None = None) -> int:
    """Runs pytest on a request in the folder of the tree; returns its exit code."""
    with Path(request["notes"]).open("a") as file:
        notes = Notes(file, request, switch)
        arguments = ["-p", "no:cacheprovider", "-p", "no:xdist", "-o", "addopts=", "-o", "timeout=0", "-q"]
        arguments += ["-p", "core.testing.pytest_plugin", "--tb=short", *request["arguments"]]
        code = pytest.main([*arguments, *request["files"]], plugins=[notes])
        notes.note(code=int(code))
    return int(code)
