"""Signals at random moments to one of two launched workers; all end with the bits of an undisturbed launch.

If a worker is killed, stopped or asked to leave, all of them end, and the launcher restarts all. Two that hold shards
of the same weights, as a mesh, write each checkpoint together.
"""

import functools
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from tests import ports
from tests.commands import CONFIGS, environment
from tools.campaign import subject
from tools.campaign.lab import Bench, Case, HungError, Lab, last_line

LAUNCH = (sys.executable, "-m", "trainers.launch", "--workers=2", "--max_restarts=3", "--deadline=20")
FLAGS = ("--", subject.FLAG, "--gin_param=Trainer.steps = 400", "--workdir=run")
REPLICAS = (f"--gin_file={CONFIGS / 'runtime' / 'multi_worker.gin'}", "--gin_param=multi_worker.peer_timeout = 4.0")
MESH = (
    f"--gin_file={CONFIGS / 'runtime' / 'mesh.gin'}",
    "--gin_param=mesh.slot_layouts = [('net/w', 'batch,-')]",
)
KINDS = {"replicas": REPLICAS, "a mesh": MESH}
STARTING = 6.0  # seconds: imports first, the workers' rendezvous last
ALONE = threading.Lock()  # concurrent launches would slow each other down, and lose workers
SIGNALS = ("SIGKILL", "SIGSTOP", "SIGTERM", "SIGINT", "SIGHUP", "SIGUSR1")


def cases(lab: Lab) -> Iterator[Case]:
    """Yields a case for each signal and worker, during training and start; for a mesh, for kills."""
    kinds = [(name, index, "replicas", False) for name in SIGNALS for index in (0, 1)]
    kinds += [("SIGKILL", index, "replicas", True) for index in (0, 1)]
    kinds += [("SIGKILL", index, "a mesh", False) for index in (0, 1) * 2]
    for i, (name, index, kind, starting) in enumerate(kinds[:1] if lab.short else kinds):
        when = "while they start" if starting else "while they train"
        mesh = f" of a mesh, {i}" if kind == "a mesh" else ""
        yield Case(
            f"{name} to worker {index} {when}{mesh}",
            functools.partial(sent, name=name, index=index, kind=kind, starting=starting),
            "a worker of a mesh" if mesh else f"{'the chief' if index == 0 else 'the other worker'}, {when}",
        )


def sent(bench: Bench, *, name: str, index: int, kind: str, starting: bool) -> None:
    """Sends one worker a signal, and compares with an undisturbed launch."""
    with ALONE:
        whole = None if bench.lab.short else _undisturbed(bench.lab, kind)  # a launch takes long
        folder = bench.new()
        process = _launch(folder, kind)
        try:
            if starting:
                time.sleep(bench.chance.uniform(1.0, STARTING))
            else:
                _wait_for_checkpoint(folder, process, bench.lab.limit)
                time.sleep(bench.chance.uniform(0.0, 0.5))
            victim = _workers_of(process.pid).get(index)
            if victim is not None:
                os.kill(victim, getattr(signal, name))
            said, _ = process.communicate(timeout=2 * bench.lab.limit)
        except subprocess.TimeoutExpired:
            raise HungError("the launched run hangs") from None
        finally:
            process.kill()
            process.communicate()
    if process.returncode:
        bench.fail(f"ended with {process.returncode}: {last_line(said)}")
    again = "starting all again" in said
    bench.count(f"{name}: {'started again' if again else 'went on' if victim else 'had finished before'}")
    if re.search(r"a SIGUSR1: saved as", said) is None and name == "SIGUSR1" and victim:
        bench.fail("didn't save at a SIGUSR1")
    for difference in subject.differences(whole / "run", folder / "run") if whole else ():
        bench.fail(difference)


def _workers_of(launcher: int) -> dict[int, int]:
    """Returns the processes of the workers by index."""
    found = {}
    for entry in os.listdir("/proc"):
        try:
            status = Path(f"/proc/{entry}/status").read_text()
            told = Path(f"/proc/{entry}/environ").read_text()
        except (OSError, ValueError):
            continue
        config = re.search(r"TF_CONFIG=(\{.*?\})\0", told)
        if f"PPid:\t{launcher}\n" in status and config:
            found[json.loads(config[1])["task"]["index"]] = int(entry)
    return found


def _undisturbed(lab: Lab, kind: str) -> Path:
    whole = lab.scratch / f"launched, {kind}"
    if not whole.exists():
        subject.write(whole)
        process = _launch(whole, kind)
        said, _ = process.communicate(timeout=2 * lab.limit)
        if process.returncode:
            raise RuntimeError(f"the undisturbed launch ended with {process.returncode}: {last_line(said)}")
    return whole


def _launch(folder: Path, kind: str) -> "subprocess.Popen[str]":
    command = [*LAUNCH, *ports.flags(), *FLAGS, *KINDS[kind]]
    return subprocess.Popen(
        command, cwd=folder, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def _wait_for_checkpoint(folder: Path, process: "subprocess.Popen[str]", limit: float) -> None:
    until = time.monotonic() + limit
    while process.poll() is None and not list((folder / "run" / "checkpoints").glob("step-*")):
        if time.monotonic() > until:
            raise HungError("the launched run never saves")
        time.sleep(0.05)
