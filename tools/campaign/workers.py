"""Signals at random moments to one of two launched workers; all end with the bits of an undisturbed launch.

If a worker is killed, stopped or asked to leave, all of them end, and the launcher restarts all. Two that hold shards
of the same weights, as a mesh, write each checkpoint together.
"""

import contextlib
import functools
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from tests import ports
from tests.commands import CONFIGS
from tools.campaign import subject
from tools.campaign.lab import Bench, Case, HungError, Lab, last_line
from tools.campaign.launched import Launched

CLUSTER = ("--workers=2", "--max_restarts=3", "--deadline=20")
FLAGS = (subject.FLAG, "--gin_param=Trainer.steps = 400", "--workdir=run")
REPLICAS = (f"--gin_file={CONFIGS / 'runtime' / 'multi_worker.gin'}", "--gin_param=multi_worker.peer_timeout = 4.0")
MESH = (
    f"--gin_file={CONFIGS / 'runtime' / 'mesh.gin'}",
    "--gin_param=mesh.slot_layouts = [('net/w', 'batch,-')]",
)
KINDS = {"replicas": REPLICAS, "a mesh": MESH}
STARTING = 6.0  # seconds, mostly for rendezvous and tracing
ALONE = threading.Lock()  # concurrent launches would slow each other down, and lose workers
SIGNALS = ("SIGKILL", "SIGSTOP", "SIGTERM", "SIGINT", "SIGHUP", "SIGUSR1")


def cases(lab: Lab) -> Iterator[Case]:
    """Yields a case for each signal and worker, during training and start; for a mesh, for kills."""
    ports.way()  # it forks, so it must be single-threaded
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
        folder, alive = bench.new(), False
        with _launched(bench.lab, folder, kind) as launched:
            if starting:
                launched.ends_within(bench.chance.uniform(1.0, STARTING))
            else:
                _wait_for_checkpoint(folder, launched, bench.lab.limit)
                launched.ends_within(bench.chance.uniform(0.0, 0.5))
            pid = launched.pids().get(f"worker {index}")
            if launched.code is None and pid is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, getattr(signal, name))
                    alive = True
            code = launched.end(2 * bench.lab.limit)
    if code:
        bench.fail(f"ended with {code}: {last_line(launched.said)}")
    again = "starting all again" in launched.said
    bench.count(f"{name}: {'started again' if again else 'went on' if alive else 'had finished before'}")
    if "a SIGUSR1: saved as" not in launched.said and name == "SIGUSR1" and alive:
        bench.fail("didn't save at a SIGUSR1")
    for difference in subject.differences(whole / "run", folder / "run") if whole else ():
        bench.fail(difference)


def _undisturbed(lab: Lab, kind: str) -> Path:
    whole = lab.scratch / f"launched, {kind}"
    if not whole.exists():
        subject.write(whole)
        with _launched(lab, whole, kind) as launched:
            code = launched.end(2 * lab.limit)
        if code:
            raise RuntimeError(f"the undisturbed launch ended with {code}: {last_line(launched.said)}")
    return whole


@contextlib.contextmanager
def _launched(lab: Lab, folder: Path, kind: str) -> Iterator[Launched]:
    with lab.server() as server, contextlib.closing(Launched(server, folder, CLUSTER, (*FLAGS, *KINDS[kind]))) as found:
        yield found


def _wait_for_checkpoint(folder: Path, launched: Launched, limit: float) -> None:
    until = time.monotonic() + limit
    while not list((folder / "run" / "checkpoints").glob("step-*")) and not launched.ends_within(0.05):
        if time.monotonic() > until:
            raise HungError("the launched run never saves")
