"""Runs commands in separate processes and folders for the checks, and writes the report.

This file doesn't import TensorFlow: the devices must stay free for the checks' processes.
"""

import dataclasses
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from core.disk import write_whole
from core.errors import ConfigurationError
from trainers.launch.processes import die_with
from trainers.process.bootstrap import CHECKOUT
from trainers.runs.read import Run, read_run

SECONDS = 900.0  # timeout of a command


class FailedError(Exception):
    """A failed check. Its text says what was wrong."""


@dataclasses.dataclass(frozen=True)
class Machine:
    """The devices, versions and details of this machine, as TensorFlow reports them."""

    kind: str  # of the checked devices: GPU, TPU, or else CPU
    devices: tuple[str, ...]
    versions: dict[str, str]
    details: tuple[str, ...]
    advice: tuple[str, ...] = ()  # what to install for the GPUs


def devices_together(machine: Machine, asked: int | None) -> int:
    """Returns how many devices to use together: the number asked for, or all; at least two virtual CPUs."""
    there = len(machine.devices)
    if machine.kind == "CPU":
        return asked or max(2, there)
    if asked and asked > there:
        raise ConfigurationError(
            f"`--replicas` is {asked}, but this machine has {there} x {machine.kind}: give at most that many, or "
            "remove the flag."
        )
    return asked or there


class Lab:
    """Runs commands for the checks. `replicas` is the number of devices to use together."""

    def __init__(self, folder: Path, machine: Machine, replicas: int):
        self.folder, self.machine, self.replicas = folder, machine, replicas

    @property
    def said(self) -> str:
        """Returns text on how many devices are used together."""
        if self.replicas == 1:
            return "only one, so checks of several devices are skipped"
        if self.replicas > len(self.machine.devices):
            return f"{self.replicas} virtual ones used together"
        return f"{self.replicas} used together"

    @property
    def together(self) -> list[str]:
        """Returns the flags with which a run uses all devices."""
        if self.replicas == 1:
            return []  # a run uses one device by default
        runtime = f"--gin_file={CHECKOUT}/configs/runtime"
        if self.machine.kind == "TPU":
            return [f"{runtime}/tpu.gin"]
        return [f"{runtime}/mirrored.gin", f"--gin_param=mirrored.replicas = {self.replicas}"]

    def train(self, name: str, config: str, bindings: Sequence[str] = (), more: Sequence[str] = ()) -> Run:
        """Trains a shipped configuration in the folder `name`, and returns its run."""
        command(self.folder / f"{name}.log", *self.flags(name, config, bindings, more))
        return read_run(self.folder / name)

    def flags(self, name: str, config: str, bindings: Sequence[str], more: Sequence[str]) -> list[str]:
        """Returns the module and the flags of a command that trains `config` in the folder `name`."""
        gin = [f"--gin_file={CHECKOUT}/configs/{config}.gin", *more, *(f"--gin_param={text}" for text in bindings)]
        return ["trainers.main", *gin, f"--workdir={self.folder / name}"]


@dataclasses.dataclass(frozen=True)
class Check:
    """One check: `run` returns a description of the result, or raises a `FailedError`."""

    name: str
    shows: str
    run: Callable[[Lab], str]


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The result of a check."""

    check: Check
    passed: bool
    seen: str
    seconds: float


def made(check: Check, lab: Lab) -> Outcome:
    began = time.monotonic()
    try:
        passed, seen = True, check.run(lab)
    except FailedError as error:
        passed, seen = False, str(error)
    return Outcome(check, passed, seen, time.monotonic() - began)


def command(log: Path, module: str, *flags: str) -> str:
    """Runs a module of this project, with its output also in `log`. Returns its output."""
    words, parent = [sys.executable, "-m", module, *flags], os.getpid()
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w") as stderr:
        try:
            done = subprocess.run(
                words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=stderr, encoding="utf-8",
                errors="replace", timeout=SECONDS, check=False, preexec_fn=lambda: die_with(parent),
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise FailedError(f"`{' '.join(words[1:])}` took more than {SECONDS:.0f} s: see `{log}`") from None
    with log.open("a") as file:
        file.write(done.stdout)
    if done.returncode:
        last = [line for line in log.read_text(errors="replace").splitlines() if line.startswith("error:")][-1:]
        raise FailedError(f"`{module}` ended with {done.returncode}: {' '.join(last) or 'see'} `{log}`")
    return done.stdout


def look(folder: Path) -> Machine:
    found: dict[str, Any] = json.loads(command(folder / "machine.log", "trainers.verify_machine.look"))
    lists = (tuple(found[name]) for name in ("details", "advice"))
    return Machine(found["kind"], tuple(found["devices"]), found["versions"], *lists)


def write_report(lab: Lab, outcomes: Sequence[Outcome]) -> list[Path]:
    page, figures = lab.folder / "report.md", lab.folder / "report.json"
    content = {
        "kind": lab.machine.kind,
        "devices": lab.machine.devices,
        "replicas": lab.replicas,
        "versions": lab.machine.versions,
        "details": lab.machine.details,
        "advice": lab.machine.advice,
        "checks": [
            {"name": x.check.name, "passed": x.passed, "seen": x.seen, "seconds": round(x.seconds, 1)} for x in outcomes
        ],
    }
    text = json.dumps(content, indent=1) + "\n"
    write_whole({page: markdown(lab, outcomes).encode(), figures: text.encode()})
    return [page, figures]


def markdown(lab: Lab, outcomes: Sequence[Outcome]) -> str:
    machine = lab.machine
    devices = f"{len(machine.devices)} x {machine.kind}"
    lines = [
        "# Tapeloop on this machine",
        "",
        f"Verified on {devices}; {lab.said}.",
        "",
        *(f"- {detail}" for detail in (*machine.details, *machine.advice)),
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
