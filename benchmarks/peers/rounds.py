"""Runs the programs in rounds, each in a fresh process; every other round runs in reverse."""

import functools
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.environments import python_of
from benchmarks.peers.others import undisturbed
from benchmarks.peers.roster import PEERS, PROGRAMS

CHECKOUT = Path(__file__).resolve().parents[2]
MOST_OF_OTHERS, TRIES = 0.1, 3  # of the cores that others may use; attempts to stay below
MOST_SECONDS = 900.0  # per process; `torch.compile` takes a minute
NOT_INSTALLED = "isn't installed: `--prepare` installs it"

Found = dict[str, Any]  # `loss` (if one is compared) and `rates`, or `failed`


def interleaved(
    peers: Sequence[str],
    folder: Path,
    *,
    rounds: int,
    seconds: float,
    found: dict[str, list[Found]],
    say: Callable[[str], None],
    run: Callable[[str, Path, float], Found] | None = None,
) -> None:
    """Adds each peer's result of each round to `found`, which survives an interrupt by the user.

    A failed peer isn't tried again. A run that other processes disturbed is.
    """
    for i in range(rounds):
        for name in list(peers)[:: 1 if i % 2 == 0 else -1]:
            seen = found.setdefault(name, [])
            if any("failed" in each for each in seen):
                continue
            began = time.perf_counter()
            one = functools.partial(run or run_once, name, folder, seconds)
            seen.append(undisturbed(one, at_most=MOST_OF_OTHERS, tries=TRIES))
            took = time.perf_counter() - began
            say(f"round {i + 1} of {rounds}, {name} ({took:.0f} s): {told(seen[-1])}")


def told(found: Found) -> str:
    """Formats a process's result in a few words."""
    if "failed" in found:
        return str(found["failed"])
    rates, others = sorted(found["rates"]), found.get("others", 0.0)
    rate = rates[len(rates) // 2]
    said = f"{rate:,.1f} steps/s, loss {found['loss']:.6g}" if "loss" in found else f"{1.0 / rate:.2f} s"
    return said if others <= MOST_OF_OTHERS else f"{said} (others took {others:.0%} of the machine)"


def run_once(name: str, folder: Path, seconds: float) -> Found:
    """Runs a peer's program on the work in `folder`."""
    peer = PEERS[name]
    python = python_of(peer.environment) if peer.environment else sys.executable
    if python is None:
        return {"failed": NOT_INSTALLED}
    command = [str(python), "-m", f"{PROGRAMS}.{peer.program}", str(folder), peer.variant, str(seconds)]
    return run_command(command)


def run_command(command: Sequence[str], environment: Mapping[str, str] = os.environ) -> Found:
    """Runs a program that prints its result as JSON on its last line."""
    own = {**environment, "PYTHONPATH": str(CHECKOUT)}
    try:
        done = subprocess.run(
            command, cwd=CHECKOUT, env=own, capture_output=True, text=True, timeout=MOST_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return {"failed": f"failed: it took longer than {MOST_SECONDS:.0f} s"}
    if done.returncode:
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()] or ["it said nothing"]
        return {"failed": f"failed: exit code {done.returncode}, {lines[-1][:300]}", "said": done.stderr[-10_000:]}
    return dict(json.loads(done.stdout.strip().rpartition("\n")[2]))
