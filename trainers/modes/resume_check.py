"""`--mode=resume_check`: checks that a killed and resumed run is bit-identical to an uninterrupted one."""

import json
import math
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import gin

from core import checkpoint
from core.errors import CheckpointError, TapeloopError
from trainers.experiment import Experiment, refuse_servers
from trainers.hooks.early_stopping import EarlyStopping
from trainers.hooks.track import UNTRACKED
from trainers.session import Session
from trainers.settings import Settings
from trainers.workdir import CHOICE

MEASURED = ("examples_per_second", "step_seconds", "data_wait")  # metrics that differ between any two runs
_PYTHON = re.compile("^(phase `[^`]+` calls Python .+): no checkpoint keeps", re.MULTILINE)
UNIT = 20  # steps, if the configuration doesn't set the chunk's length


def run(session: Session) -> int:
    """Trains the same steps twice, once with a SIGKILL and a resume; compares variables and metric lines."""
    # Nothing is built here, so that the compared runs have the GPU.
    session.bind(required=[Experiment, Settings])
    refuse_servers(
        "`--mode=resume_check` compares bits, and runs with parameter servers aren't reproducible: check without "
        "the runtime's `--gin_file`. With parameter servers each step counts once: see "
        "docs/choose-a-strategy.md#asynchronous-parameter-servers."
    )
    bound = gin.get_bindings(Settings)
    repeats = bool(gin.get_bindings(Experiment, resolve_references=False).get("deterministic"))
    rounds = bound.get("local_steps") or 1
    unit = bound.get("chunk_steps") or rounds * math.ceil(UNIT / rounds)
    kill_after = unit * random.SystemRandom().randint(4, 7)  # after the checkpoint
    # The checkpoint is in the middle of a metric line, to test the pending sums as well.
    intervals = {"steps": 8 * unit, "checkpoint_every": 4 * unit, "evaluate_every": 4 * unit, "log_every": 3 * unit}
    flags = [f"--gin_file={name}" for name in session.flags.gin_file]
    flags += [f"--gin_param={text}" for text in session.flags.gin_param]
    if bound.get("keep_every"):
        intervals["keep_every"] = 4 * unit
    flags += [f"--gin_param=Trainer.{name} = {steps}" for name, steps in intervals.items()]
    if gin.get_bindings(EarlyStopping):
        flags.append(f"--gin_param=EarlyStopping.every = {4 * unit}")  # its evaluations need a checkpoint
    with tempfile.TemporaryDirectory() as scratch:
        whole, killed = Path(scratch) / "whole", Path(scratch) / "killed"
        print(f"training {8 * unit} steps without a stop", flush=True)
        _train(flags, whole)
        if (whole / CHOICE).exists():  # the runs have to be of one program
            killed.mkdir()
            shutil.copy(whole / CHOICE, killed)
        print(f"training again, with a checkpoint at step {4 * unit} and a SIGKILL after step {kill_after}", flush=True)
        _train([*flags, f"--kill_after_step={kill_after}"], killed, expected=-signal.SIGKILL)
        resumed = _train(flags, killed)
        if f"resuming from step {4 * unit}" not in resumed:
            raise CheckpointError(f"the killed run started over instead of resuming from step {4 * unit}.")
        differences = list_differences(whole, killed)
        gpus = _on_gpus(whole)
    if differences:
        raise CheckpointError(another_run(differences, resumed, gpus=gpus, repeats=repeats))
    print(
        f"resume is exact: {8 * unit} steps with a kill after {kill_after} end in the same bits, metric lines included"
    )
    return 0


class _RunFailedError(TapeloopError):
    """One of the compared runs failed by itself."""

    def __init__(self, text: str, exit_code: int):
        super().__init__(text)
        self.exit_code = exit_code


def _train(flags: list[str], workdir: Path, *, expected: int = 0) -> str:
    command = [sys.executable, "-m", "trainers.main", *flags, f"--workdir={workdir}"]
    env = {**os.environ, UNTRACKED: "1"}
    done = subprocess.run(command, capture_output=True, encoding="utf-8", errors="replace", check=False, env=env)
    if done.returncode != expected:
        text = done.stderr.strip().removeprefix("error: ") or "it said nothing"
        code = done.returncode if done.returncode >= 0 else 128 - done.returncode  # by a signal, as a shell says it
        raise _RunFailedError(f"a run ended with {done.returncode} instead of {expected}: {text}", max(code, 1))
    return done.stdout


def list_differences(whole: Path, killed: Path) -> list[str]:
    """Lists the differences between the last checkpoints and the metric lines of two workdirs."""
    one, other = (checkpoint.newest(workdir / "checkpoints", warn=print) for workdir in (whole, killed))
    assert one is not None
    assert other is not None
    found = [
        f"variable `{path}`"
        for path in sorted({*one.variables, *other.variables})
        if one.variables.get(path) != other.variables.get(path)
    ]
    if (one.step, one.examples) != (other.step, other.examples):
        found.append(f"step and examples {(one.step, one.examples)} became {(other.step, other.examples)}")
    lines, others = (_lines(workdir / "metrics.jsonl") for workdir in (whole, killed))
    if len(lines) != len(others):
        found.append(f"{len(lines)} metric lines became {len(others)}")
    return found + [f"metric line {a} became {b}" for a, b in zip(lines, others, strict=False) if a != b]


def _on_gpus(workdir: Path) -> bool:
    """Returns whether the run in `workdir` had GPUs."""
    return any("GPU" in device for device in json.loads((workdir / "run.json").read_text("utf-8"))["devices"])


def another_run(differences: list[str], printed: str, *, gpus: bool = False, repeats: bool = True) -> str:
    """Returns an error's text: why the resumed run differs from the other one, or else the `differences`.

    The reason is in `printed`, the output of the resumed run. On GPUs (`gpus`), two runs are bit-identical only if
    operations are deterministic (`repeats`).
    """
    if not (calls := _PYTHON.findall(printed)):
        if gpus and not repeats:
            return (
                "the resumed run is another run: GPUs add numbers up in another order each time, unless they are told "
                f"not to. Bind `Experiment.deterministic = True`. {len(differences)} values and lines differ, the "
                f"first of them {differences[0]}."
            )
        return f"the resumed run is another run: {'; '.join(differences[:10])}"
    return (
        f"the resumed run is another run, likely because {' and '.join(dict.fromkeys(calls))}: what Python remembers, "
        "no checkpoint keeps. Compute it by TensorFlow's functions, draw it by `rng`, or read it as a feature of the "
        f"batch. In all, {len(differences)} values and lines differ, the first of them {differences[0]}."
    )


def _lines(path: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    return [{key: x for key, x in line.items() if key not in MEASURED} for line in lines]
