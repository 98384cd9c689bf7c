"""Two launched workers, of which one is killed or stopped at a random moment; all start again, to the same bits."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from tests.campaign import subject
from tests.campaign.lab import Bench, Case, HungError, Lab, last_line
from tests.commands import CONFIGS, environment
from tests.trainers.launch.test_many_workers import workers_of

LAUNCH = (sys.executable, "-m", "trainers.launch", "--workers=2", "--max_restarts=3", "--deadline=20", "--")
FLAGS = (
    "--gin_file=watched.gin",
    f"--gin_file={CONFIGS / 'runtime' / 'multi_worker.gin'}",
    "--gin_param=Trainer.steps = 400",
    "--gin_param=multi_worker.peer_timeout = 4.0",
    "--workdir=run",
)
ALONE = threading.Lock()  # two launches at once would take each other's time, and lose workers for it


def cases(lab: Lab) -> Iterator[Case]:
    """Yields a case for each signal and worker."""
    kinds = [(name, index) for name in ("SIGKILL", "SIGSTOP") for index in (0, 1)]
    rounds = 1 if lab.short else 2
    for number in range(rounds):
        for name, index in kinds[:1] if lab.short else kinds:
            yield Case(
                f"{name} to worker {index}, {number + 1}",
                lambda bench, name=name, index=index: lost(bench, getattr(signal, name), index),
            )


def lost(bench: Bench, number: int, index: int) -> None:
    """Loses one worker after a checkpoint, and compares with a launch that nothing disturbs."""
    with ALONE:
        whole = bench.lab.scratch / "launched"
        if not whole.exists():
            subject.write(whole)
            done = subprocess.run(
                [*LAUNCH, *FLAGS], cwd=whole, env=environment(), capture_output=True, text=True, check=False
            )
            assert done.returncode == 0, last_line(done.stderr)
        folder = bench.new()
        process = _launch(folder)
        try:
            _wait_for_checkpoint(folder, process, bench.lab.limit)
            time.sleep(bench.chance.uniform(0.0, 0.5))
            victim = workers_of(process.pid).get(index)
            if victim is not None:
                os.kill(victim, number)
            said, _ = process.communicate(timeout=2 * bench.lab.limit)
        except subprocess.TimeoutExpired:
            raise HungError("the launched run hangs") from None
        finally:
            process.kill()
    if process.returncode:
        bench.fail(f"ended with {process.returncode}: {last_line(said)}")
    elif "starting all workers again" in said:
        bench.count("started again")
    else:
        bench.count("had finished before")
    for difference in subject.differences(whole / "run", folder / "run"):
        bench.fail(difference)


def _launch(folder: Path) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [*LAUNCH, *FLAGS], cwd=folder, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def _wait_for_checkpoint(folder: Path, process: "subprocess.Popen[str]", limit: float) -> None:
    until = time.monotonic() + limit
    while process.poll() is None and not list((folder / "run" / "checkpoints").glob("step-*")):
        if time.monotonic() > until:
            raise HungError("the launched run never saves")
        time.sleep(0.1)
