"""SIGTERM, SIGHUP, SIGINT (once, twice, thrice) and SIGUSR1 in each section; the run resumes to the same bits."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from core import checkpoint
from core.errors import INTERRUPTED, PreemptedError
from tests.commands import environment
from tools.campaign import subject
from tools.campaign.lab import Bench, Case, HungError, Lab, last_line

SAVED = PreemptedError.exit_code
SENT = {
    "SIGTERM": [signal.SIGTERM],
    "SIGHUP": [signal.SIGHUP],
    "SIGINT": [signal.SIGINT],
    "SIGINT twice": [signal.SIGINT] * 2,
    "SIGINT thrice": [signal.SIGINT] * 3,
    "SIGUSR1": [signal.SIGUSR1],
}
AT_ONCE = dict(zip(SENT, (SAVED, SAVED, INTERRUPTED, INTERRUPTED, INTERRUPTED, 0), strict=True))
AFTER_THE_CHUNK = dict(zip(SENT, (SAVED, SAVED, SAVED, INTERRUPTED, INTERRUPTED, 0), strict=True))
NOTHING_LEFT = dict(zip(SENT, (0, 0, 0, INTERRUPTED, INTERRUPTED, 0), strict=True))  # all is saved
SECTIONS = {  # the mark at which each section begins, and how the run has to end
    "set-up": ("section set-up #1", AT_ONCE),
    "finding what a step needs": ("section tracing #1", AT_ONCE),
    "tracing": ("section tracing #3", AFTER_THE_CHUNK),
    "steps": ("section steps #2", AFTER_THE_CHUNK),
    "hook": ("section hook #2", AFTER_THE_CHUNK),
    "evaluation": ("section evaluation #2", AFTER_THE_CHUNK),
    "save": ("section save #2", AFTER_THE_CHUNK),
    "the last result": ("open .result.json.PID.tmp #1", NOTHING_LEFT),
    "writing": ("section write #1", AFTER_THE_CHUNK),  # which a thread does during training
    "moving": ("section move #1", AFTER_THE_CHUNK),
}
IN_A_THREAD = ("writing", "moving")
IMPORTING = {"SIGTERM": SAVED, "SIGHUP": SAVED, "SIGINT": INTERRUPTED, "SIGUSR1": 0}


def cases(lab: Lab) -> Iterator[Case]:
    """Yields a case for each signal in each section."""
    pairs = [(section, sent) for section in SECTIONS for sent in SENT]
    for section, sent in pairs[50::60] if lab.short else pairs:
        yield Case(
            f"{sent} in {section}", lambda bench, section=section, sent=sent: in_section(bench, section, sent), section
        )
    for sent in () if lab.short else IMPORTING:  # the same: `tests/trainers/test_preemption.py`
        yield Case(f"{sent} while importing", lambda bench, sent=sent: while_importing(bench, sent), "imports")


def in_section(bench: Bench, section: str, sent: str) -> None:
    """Sends a run signals at a mark, and starts it again."""
    folder = bench.new()
    mark, codes = SECTIONS[section]
    act = "send_and_linger" if section in IN_A_THREAD else "send"
    done = bench.run(folder, codes=[codes[sent]], at=mark, act=act, values=[int(n) for n in SENT[sent]])
    bench.count(f"{sent} {done.returncode}")
    if done.returncode == SAVED and codes is AFTER_THE_CHUNK:
        _check_saved(bench, folder / "run")
    if section in IN_A_THREAD and sent != "SIGINT thrice" and not checkpoint.steps_in(folder / "run" / "checkpoints"):
        bench.fail("didn't wait for the checkpoint that was being written")
    if sent == "SIGUSR1" and codes is not NOTHING_LEFT and "a SIGUSR1: saved as" not in done.stdout:
        bench.fail("didn't save at a SIGUSR1")
    bench.run(folder)
    bench.same(folder)


def _check_saved(bench: Bench, workdir: Path) -> None:
    newest = checkpoint.newest(workdir / "checkpoints", warn=bench.fail)
    result = json.loads((workdir / "result.json").read_text())
    if newest is None or newest.step != result["step"]:
        bench.fail(f"said that it saved step {result['step']}; the newest checkpoint is {newest and newest.step}")
    if result["exit_code"] != SAVED:
        bench.fail(f"ended with {SAVED}, and `result.json` says {result['exit_code']}")


def while_importing(bench: Bench, sent: str) -> None:
    """Signals a new process before its training can have started."""
    folder = bench.new()
    command = [sys.executable, "-m", "trainers.main", subject.FLAG, "--workdir=run"]
    process = subprocess.Popen(
        command, cwd=folder, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    heard = time.monotonic() + bench.lab.limit
    while process.poll() is None and not _hears(process.pid):  # until then the kernel handles its signals
        if time.monotonic() > heard:
            break
        time.sleep(0.01)
    time.sleep(bench.chance.uniform(0.0, 1.0))
    process.send_signal(SENT[sent][0])
    try:
        _, stderr = process.communicate(timeout=bench.lab.limit)
    except subprocess.TimeoutExpired:
        process.kill()
        raise HungError("hangs: a signal while importing") from None
    bench.count(f"{sent} {process.returncode}")
    if process.returncode != IMPORTING[sent] or "Traceback" in stderr:
        bench.fail(f"ended with {process.returncode}: {last_line(stderr)}")
    bench.run(folder)
    bench.same(folder)


def _hears(pid: int) -> bool:
    """Returns whether the process has handlers for all of these signals."""
    with open(f"/proc/{pid}/status") as status:
        caught = next(int(line.split()[1], 16) for line in status if line.startswith("SigCgt"))
    return all(caught >> number - 1 & 1 for name in IMPORTING for number in SENT[name])
