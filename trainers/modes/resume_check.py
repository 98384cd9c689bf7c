"""`--mode=resume_check`: shows that a killed run, started again, is the run that was never killed, bit for bit."""

import json
import random
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from core import checkpoint
from core.errors import CheckpointError, ConfigurationError
from trainers.session import Session

MEASURED = ("examples_per_second", "step_seconds", "data_wait")  # what no two runs share


def run(session: Session) -> int:
    """Trains 2N steps, and N + a crash + the rest, in temporary workdirs; compares variables and metric lines."""
    trainer = session.trainer()
    n = trainer.chunk_steps * max(1, min(trainer.steps, 200) // (2 * trainer.chunk_steps))
    steps = 2 * n
    kill_after = n + random.SystemRandom().randrange(0, n, trainer.chunk_steps)
    with tempfile.TemporaryDirectory() as scratch:
        whole, killed = Path(scratch) / "whole", Path(scratch) / "killed"
        print(f"training {steps} steps without a stop", flush=True)
        _train(session, whole, steps, n)
        print(f"training again, with a SIGKILL after step {kill_after} and a checkpoint at {n}", flush=True)
        crash = _train(session, killed, steps, n, "--kill_after_step", str(kill_after), check=False)
        if crash.returncode != -9:
            raise CheckpointError(
                f"the run that should have been killed exited with {crash.returncode}: {crash.stderr}"
            )
        _train(session, killed, steps, n)
        differences = _differences(whole, killed)
    if differences:
        raise CheckpointError("the resumed run is another run: " + "; ".join(differences[:10]))
    print(f"resume is exact: {steps} steps with a kill after {kill_after} end in the same bits, metric lines included")
    return 0


def _train(session: Session, workdir: Path, steps: int, every: int, *more: str, check: bool = True) -> Any:
    flags = session.flags
    command = [sys.executable, "-m", "trainers.main", f"--workdir={workdir}", *more]
    command += [f"--gin_file={name}" for name in flags.gin_file] + [f"--gin_param={text}" for text in flags.gin_param]
    command += [f"--gin_param=Trainer.steps={steps}", f"--gin_param=Trainer.checkpoint_every={every}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if check and done.returncode:
        raise ConfigurationError(f"`{' '.join(command)}` exited with {done.returncode}: {done.stderr.strip()}")
    return done


def _differences(whole: Path, killed: Path) -> Sequence[str]:
    one, other = (checkpoint.newest(w / "checkpoints", warn=print) for w in (whole, killed))
    assert one is not None
    assert other is not None
    found = [f"variable `{path}`" for path in one.variables if one.variables[path] != other.variables.get(path)]
    for a, b in zip(*(_lines(w / "metrics.jsonl") for w in (whole, killed)), strict=False):
        found += [f"metric line {a} became {b}"] if a != b else []
    if (one.step, one.examples) != (other.step, other.examples):
        found.append(f"step and examples {(one.step, one.examples)} became {(other.step, other.examples)}")
    return found


def _lines(path: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return [{key: x for key, x in line.items() if key not in MEASURED} for line in lines]
