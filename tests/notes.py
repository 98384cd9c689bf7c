"""Notes of a pytest run for the gate: each test's outcome and cost, one JSON object a line."""

import contextlib
import json
import os
import resource
import time
from collections.abc import Iterator
from pathlib import Path

import pytest


class Notes:
    """Measures each test in the process that runs it; the process that reports writes them to `file`."""

    def __init__(self, file: Path | None) -> None:
        self._file = file  # None in the workers of pytest-xdist, whose reports come to the one that writes
        self._began = (0.0, 0.0)
        self._failed: set[str] = set()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logstart(self) -> None:
        self._began = (processor_seconds(), time.perf_counter())

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
        if call.when == "teardown":
            processor, began = self._began
            measured = {
                "processor_seconds": round(processor_seconds() - processor, 2),
                "seconds": round(time.perf_counter() - began, 2),
                "megabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
                "long": item.get_closest_marker("long") is not None,
            }
            item.user_properties.append(("notes", measured))
        return (yield)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if self._file is None:
            return
        if report.failed:
            self._failed.add(report.nodeid)
        measured = dict(report.user_properties).get("notes")
        crashed = report.when not in ("setup", "call", "teardown")  # the worker that ran it is gone
        if report.when == "teardown" or crashed:
            reached = dict(report.user_properties).get("reached", True)
            note = {"test": report.nodeid, "passed": report.nodeid not in self._failed, "reached": reached}
            with self._file.open("a") as file:
                print(json.dumps({**note, **(measured if isinstance(measured, dict) else {})}), file=file)


def processor_seconds() -> float:
    """Returns the processor seconds of this process and its descendants, the fork server's forks included."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(x.ru_utime + x.ru_stime for x in used) + _living_seconds("self")


def _living_seconds(process: str) -> float:
    """Returns the processor seconds of a process's living children and theirs; zero if the system doesn't list them."""
    total = 0.0
    threads = f"/proc/{process}/task"  # `pathlib` would take a hundredth of the suite's time
    for thread in os.listdir(threads) if os.path.isdir(threads) else ():
        with contextlib.suppress(OSError):  # it has ended meanwhile
            with open(f"{threads}/{thread}/children") as listed:
                children = listed.read().split()
            for child in children:
                with open(f"/proc/{child}/stat") as stat:
                    # Processor time of the process, and of its ended children; its name may have spaces.
                    ticks = stat.read().rpartition(")")[2].split()[11:15]
                total += sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK") + _living_seconds(child)
    return total
