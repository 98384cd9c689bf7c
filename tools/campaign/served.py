"""Signals to a chief, workers and servers under `trainers.launch`: each step must count once.

A lost process restarts, alone or with all others, and the run ends by itself; if the launcher ends, its command must be
run again. A run on one device then resumes from the last checkpoint.
"""

import contextlib
import itertools
import os
import signal
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import NamedTuple

from core.errors import PreemptedError
from tests import ports
from tests.commands import CONFIGS
from tools.campaign import counted
from tools.campaign.lab import Bench, Case, Lab, last_line
from tools.campaign.launched import Launched

CLUSTER = ("--workers=2", "--ps=2", "--max_restarts=6", "--deadline=20")
FLAGS = (
    "--gin_file=counted.gin",
    f"--gin_file={CONFIGS / 'runtime' / 'parameter_server.gin'}",
    "--gin_param=parameter_server.overdue = 2.0",
    "--workdir=run",
)
ROLES = ("launch", "chief", "worker", "ps")
FOR_A_WHILE, FOR_GOOD = "SIGSTOP for a while", "SIGSTOP for good"
SIGNALS = ("SIGKILL", "SIGTERM", FOR_A_WHILE)
ENDS = {"SIGKILL": {-signal.SIGKILL}, "SIGTERM": {0, PreemptedError.exit_code}}  # the launcher itself
MOMENTS = ("start", "training", "evaluation", "save")
STARTING = 6.0  # seconds, mostly for rendezvous and tracing
TURN = 0.1  # seconds in which an evaluation or a save has begun or is over
AWAY = (0.2, 5.0)  # seconds of a pause: other workers take some steps meanwhile
TRAINING = 1.0  # seconds in which some steps follow a save
AT_RANDOM, MOST_SIGNALS = 40, 5


class Blow(NamedTuple):
    """A signal: its target and its moment."""

    signal: str
    role: str
    moment: str

    def __str__(self) -> str:
        return f"{self.signal} to {self.role}, at {self.moment}"


def cases(lab: Lab) -> Iterator[Case]:
    """Yields a case without signals, one for each signal, role and moment, and some with several signals."""
    ports.way()  # it forks, so it must be single-threaded
    if not lab.short:
        yield Case("nothing", lambda bench: struck(bench, []), "undisturbed")
    blows = [Blow(*kind) for kind in _kinds()]
    for blow in blows[14:15] if lab.short else blows:  # a killed worker: `tests/served/test_served_faults.py`
        yield Case(str(blow), lambda bench, blow=blow: struck(bench, [blow]), blow.role)
    for i in range(0 if lab.short else AT_RANDOM):
        yield Case(f"at random {i + 1}", lambda bench: struck(bench, at_random(bench.chance)), "several in a row")


def _kinds() -> Iterator[tuple[str, str, str]]:
    yield from itertools.product(SIGNALS, ROLES, MOMENTS)
    yield from itertools.product([FOR_GOOD], ["worker"], MOMENTS)
    yield from itertools.product([FOR_GOOD], ["chief", "ps"], ["training"])  # which are missed only after a minute


def at_random(chance: Random) -> list[Blow]:
    """Draws some signals in a row."""
    return [
        Blow(chance.choice(SIGNALS), chance.choice(ROLES), chance.choice(MOMENTS))
        for _ in range(chance.randint(2, MOST_SIGNALS))
    ]


def struck(bench: Bench, blows: Sequence[Blow]) -> None:
    """Launches the run, sends the signals, and launches again if one has ended the launcher itself."""
    folder, left = bench.folder / "1", list(blows)
    counted.write(folder)
    while code := _launch(bench, folder, left):
        pass
    bench.readable(folder)
    if code is None:
        return
    _count_steps(bench, folder, counted.STEPS)
    alone = (f"--gin_param=Trainer.steps = {counted.STEPS + counted.MORE}", "--workdir=run")
    with bench.lab.server() as server:
        done = server.run("--gin_file=counted.gin", *alone, cwd=folder, timeout=bench.lab.limit)
    if done.returncode:
        bench.fail(f"a run on one device can't resume from it: {done.returncode}, {last_line(done.stderr)}")
    else:
        _count_steps(bench, folder, counted.STEPS + counted.MORE)


def _launch(bench: Bench, folder: Path, left: list[Blow]) -> int | None:
    """Launches once, and sends signals until one must end the launcher; returns the launcher's exit code, if right."""
    with bench.lab.server() as server, contextlib.closing(Launched(server, folder, CLUSTER, FLAGS)) as launched:
        expected = {0}
        while left and expected == {0}:
            blow = left.pop(0)
            if not _strike(bench, launched, blow):
                bench.count(f"{blow.signal}: had ended before")
                continue
            bench.count(blow.signal)
            if blow.role == "launch":
                expected = ENDS.get(blow.signal, {0})
        code = launched.end(2 * bench.lab.limit)
        bench.count(f"ended with {code}", tried=0)
        behind = launched.left_behind()
    if behind:
        bench.fail(f"left behind: {', '.join(behind)}")
    _, traced, what = launched.said.partition("Traceback (most recent call last)")
    if traced:
        bench.fail(f"a traceback{what[:3000]}")
    if code not in expected:
        bench.fail(f"ended with {code}, not {' or '.join(map(str, expected))}: {last_line(launched.said)}")
        return None
    return code


def _strike(bench: Bench, launched: Launched, blow: Blow) -> bool:
    """Sends the signal at its moment; returns whether its target was still alive."""
    if blow.moment == "start":
        launched.ends_within(bench.chance.uniform(0.0, STARTING))
    else:
        section = "save" if blow.moment == "training" else blow.moment
        soon = (TURN, TRAINING) if blow.moment == "training" else (0.0, TURN)
        if launched.comes_to(section, launched.count(section) + bench.chance.randint(1, 3), bench.lab.limit):
            launched.ends_within(bench.chance.uniform(*soon))
    pids = [pid for name, pid in launched.pids().items() if name.split()[0] == blow.role]
    if launched.code is not None or not pids:
        return False
    pid, number = bench.chance.choice(pids), getattr(signal, blow.signal.split()[0])
    try:
        os.kill(pid, number)
        if blow.signal == FOR_A_WHILE:
            time.sleep(bench.chance.uniform(*AWAY))
            os.kill(pid, signal.SIGCONT)
    except ProcessLookupError:  # it was restarting, or was given up during its pause
        return False
    return True


def _count_steps(bench: Bench, folder: Path, steps: int) -> None:
    for difference in counted.miscounts(folder / "run", steps)[:4]:
        bench.fail(difference)
