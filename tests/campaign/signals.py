"""SIGTERM, SIGHUP, SIGINT (once, twice, thrice) and SIGUSR1 in each section; the run goes on to the same bits."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence

from core import checkpoint
from core.errors import PreemptedError
from tests.campaign import subject
from tests.campaign.lab import Bench, Case, Lab, last_line
from tests.commands import environment

SAVED = PreemptedError.exit_code
INTERRUPTED = (128 + signal.SIGINT, -signal.SIGINT)
SENT: dict[str, tuple[Sequence[int], Sequence[int]]] = {  # what is sent, and how the run may end
    "SIGTERM": ([signal.SIGTERM], [SAVED]),
    "SIGHUP": ([signal.SIGHUP], [SAVED]),
    "SIGINT": ([signal.SIGINT], [SAVED]),
    "SIGINT twice": ([signal.SIGINT] * 2, [SAVED, *INTERRUPTED]),
    "SIGINT thrice": ([signal.SIGINT] * 3, [SAVED, *INTERRUPTED]),
    "SIGUSR1": ([signal.SIGUSR1], [0]),
}
IMPORTING = {"SIGTERM": [SAVED, -signal.SIGTERM], "SIGHUP": [SAVED, -signal.SIGHUP], "SIGINT": [SAVED, *INTERRUPTED]}
TRAINS = ("steps", "evaluation", "hook", "save")  # sections in which there is something to save


def cases(lab: Lab) -> Iterator[Case]:
    """Yields a case for each signal in each section."""
    last = max((mark for mark in lab.marks if mark.startswith("open result.")), key=lab.marks.index)
    moments = {
        **{name: f"section {name} #1" for name in ("set-up", "tracing")},
        **{name: f"section {name} #2" for name in TRAINS},
        "the end": last,
    }
    pairs = [(name, sent) for name in moments for sent in SENT]
    for name, sent in pairs[:: 8 if lab.short else 1]:
        yield Case(
            f"{sent} in {name}", lambda bench, name=name, sent=sent: in_section(bench, name, moments[name], sent)
        )
    for sent in ("SIGINT",) if lab.short else IMPORTING:
        yield Case(f"{sent} while importing", lambda bench, sent=sent: while_importing(bench, sent))


def in_section(bench: Bench, section: str, mark: str, sent: str) -> None:
    """Sends a run signals at a mark, and starts it again."""
    folder = bench.new()
    numbers, codes = SENT[sent]
    at_the_end = [0] if section == "the end" else []
    done = bench.run(folder, codes=[*codes, *at_the_end], at=mark, act="send", values=[int(n) for n in numbers])
    bench.count(f"ended with {done.returncode}")
    if done.returncode == SAVED:
        newest = checkpoint.newest(folder / "run" / "checkpoints", warn=bench.fail)
        result = json.loads((folder / "run" / "result.json").read_text())
        if section in TRAINS and (newest is None or newest.step != result["step"]):
            bench.fail(f"said that it saved step {result['step']}; the newest checkpoint is {newest and newest.step}")
        if result["exit_code"] != SAVED:
            bench.fail(f"ended with {SAVED}, and `result.json` says {result['exit_code']}")
    bench.run(folder)
    bench.same(folder)


def while_importing(bench: Bench, sent: str) -> None:
    """Signals a new process before it can have come to training."""
    folder = bench.new()
    command = [sys.executable, "-m", "trainers.main", *subject.FLAGS]
    process = subprocess.Popen(
        command, cwd=folder, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    try:
        process.communicate(timeout=bench.chance.uniform(0.3, 1.5))
    except subprocess.TimeoutExpired:
        process.send_signal(SENT[sent][0][0])
    _, stderr = process.communicate(timeout=bench.lab.limit)
    bench.count(f"ended with {process.returncode}")
    if process.returncode not in IMPORTING[sent] or "Traceback" in stderr:
        bench.fail(f"ended with {process.returncode}: {last_line(stderr)}")
    bench.run(folder)
    bench.same(folder)
