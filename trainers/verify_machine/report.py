"""The report: a page for people and for bug reports, and the same as JSON."""

import json
from collections.abc import Sequence
from pathlib import Path

from core.disk import write_whole
from trainers.verify_machine.lab import Lab, Outcome


def write(lab: Lab, outcomes: Sequence[Outcome]) -> list[Path]:
    """Writes both; returns where."""
    page, figures = lab.folder / "report.md", lab.folder / "report.json"
    content = {
        "kind": lab.machine.kind,
        "devices": lab.machine.devices,
        "replicas": lab.replicas,
        "versions": lab.machine.versions,
        "details": lab.machine.details,
        "checks": [
            {"name": x.check.name, "passed": x.passed, "seen": x.seen, "seconds": round(x.seconds, 1)} for x in outcomes
        ],
    }
    text = json.dumps(content, indent=1) + "\n"
    write_whole({page: markdown(lab, outcomes).encode(), figures: text.encode()})
    return [page, figures]


def markdown(lab: Lab, outcomes: Sequence[Outcome]) -> str:
    """Returns the page."""
    machine = lab.machine
    devices = f"{len(machine.devices)} x {machine.kind}"
    together = f"{lab.replicas} of them" if len(machine.devices) >= lab.replicas else f"{lab.replicas} virtual ones"
    lines = [
        "# Tapeloop on this machine",
        "",
        f"Verified on {devices}, together on {together}.",
        "",
        *(f"- {detail}" for detail in machine.details),
        f"- {', '.join(f'{name} {version}' for name, version in sorted(machine.versions.items()))}",
        "",
        "| check | what it shows | result | seconds |",
        "| --- | --- | --- | --- |",
        *(f"| {x.check.name} | {x.check.shows} | {_result(x)} | {x.seconds:.0f} |" for x in outcomes),
    ]
    return "\n".join(lines) + "\n"


def _result(outcome: Outcome) -> str:
    seen = " ".join(outcome.seen.split()).replace("|", "\\|")
    return seen if outcome.passed else f"**FAILED** {seen}"
