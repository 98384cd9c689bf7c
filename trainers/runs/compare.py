"""Differences between runs: operative bindings, revision, versions, devices."""

from collections.abc import Mapping, Sequence
from typing import Any

from trainers.runs.read import Run

MISSING = "–"  # the run has no such value


def differences(runs: Sequence[Run]) -> dict[str, list[str]]:
    """Returns {name: value of each run} for names whose values differ; revision, devices and versions come last."""
    bindings = _differing([run.configuration for run in runs])
    return bindings | _differing([_started_with(run.record) for run in runs])


def _differing(tables: Sequence[Mapping[str, str]]) -> dict[str, list[str]]:
    """Returns {name: value in each table} for differing values; ignores empty tables of runs that recorded nothing."""
    rows = {}
    for name in sorted({name for table in tables for name in table}):
        if len({table.get(name) for table in tables if table}) > 1:
            rows[name] = [table.get(name, MISSING) for table in tables]
    return rows


def _started_with(record: Mapping[str, Any]) -> dict[str, str]:
    """Returns the revision, devices and versions in a run's `record` as {name: text}."""
    versions, devices = record.get("versions"), record.get("devices")
    found = {"git revision": record.get("git")}
    if isinstance(devices, list):
        found["devices"] = ", ".join(map(str, devices))
    if isinstance(versions, dict):
        found |= {f"version of {name}": version for name, version in versions.items()}
    return {name: str(value) for name, value in found.items() if value is not None}
