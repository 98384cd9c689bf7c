"""The run under test: 40 steps of softmax regression, which reports its sections with `sys.audit`."""

import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path

MODULE = '''
import sys

import gin
import numpy as np
import tensorflow as tf

from core.checkpoint import saves
from core.data import digits
from models.classifiers.linear import LinearClassifier
from trainers.hooks import Hook


def section(name):
    sys.audit("section", name)


def told(name, function):
    def tell(*arguments, **options):
        section(name)
        return function(*arguments, **options)

    return tell


SAVES = {"copy": "copied", "write": "write_parts", "seal": "put_together", "move": "put_in_place"}
for name, function in SAVES.items():  # all but the first in the writer's thread
    setattr(saves, function, told(name, getattr(saves, function)))


@gin.configurable
class Watched(LinearClassifier):
    """Says when it is made and traced."""

    def __init__(self, *, rng, optimizer=gin.REQUIRED):
        section("set-up")
        super().__init__(rng=rng, in_size=64, optimizer=optimizer)

    def loss(self, batch, rng):
        section("tracing")
        return super().loss(batch, rng)

    def evaluate(self, *arguments):
        section("evaluation")
        return super().evaluate(*arguments)


@gin.configurable
class Told(Hook):
    """Says when it is asked, called and saved; counts its calls, and reports the count."""

    def __init__(self, every=None):
        super().__init__(every)
        self.calls = 0

    def due(self, step, steps):
        section("steps")
        return super().due(step, steps)

    def __call__(self, run):
        section("hook")
        self.calls += 1
        size = tf.reduce_sum(tf.abs(run.experiment.task.net.w))
        run.report("told", {"calls": float(self.calls), "size": float(size)})

    def state(self):
        section("save")
        return {"calls": self.calls}

    def load(self, state):
        self.calls = state["calls"]
'''

GIN = """
import watched
Experiment.task = @Watched
Experiment.train_source = @digits()
Experiment.eval_source = @test/digits()
test/digits.split = "test"
Watched.optimizer = @sgd()
sgd.learning_rate = 0.1
sgd.momentum = 0.9
Trainer.steps = 40
Trainer.global_batch_size = 64
Trainer.chunk_steps = 5
Trainer.log_every = 15
Trainer.checkpoint_every = 10
Trainer.evaluate_every = 20
Trainer.keep_checkpoints = 2
Trainer.hooks = [@Told()]
Told.every = 10
"""
FLAG = "--gin_file=watched.gin"
SECTIONS = ("set-up", "tracing", "steps", "evaluation", "hook", "save", "copy", "write", "seal", "move")


def section(marks: Sequence[str]) -> str:
    """Returns the section of a run after these marks."""
    last = marks[-1] if marks else ""
    if "result.json" in last and not last.startswith("remove result.json"):  # which is an earlier one, at the start
        return "the last result"
    if ".replaced #" in last or last.startswith("rmdir checkpoints"):  # saved: the next steps are running
        return "steps"
    found = [mark.removeprefix("section ").partition(" #")[0] for mark in marks if mark.startswith("section ")]
    return found[-1] if found else "start"


def write(folder: Path) -> None:
    """Writes the experiment into a new folder, with the run in `run` below it."""
    folder.mkdir(parents=True)
    (folder / "watched.py").write_text(MODULE)
    (folder / "watched.gin").write_text(GIN)


def differences(whole: Path, other: Path, *, lost: str | None = None) -> list[str]:
    """Lists the differences of two finished workdirs; those in the file `lost` are allowed."""
    from trainers.modes.resume_check import list_differences

    found = []
    if lost == "metrics.jsonl":
        (other / lost).write_text((whole / lost).read_text())
    found += list_differences(whole, other)
    one, two = (json.loads((workdir / "result.json").read_text()) for workdir in (whole, other))
    if one != two:
        found.append(f"result.json {one} became {two}")
    names, others = files(whole), files(other)
    found += [f"`{name}` is left over" for name in sorted(others - names)]
    return found + [f"`{name}` is missing" for name in sorted(names - others)]


def files(workdir: Path) -> set[str]:
    """Lists the files of a workdir; each start writes a TensorBoard file, which counts once.

    A file that only holds warnings about a busy machine isn't counted.
    """
    names = {str(path.relative_to(workdir)) for path in workdir.rglob("*") if "config/history" not in str(path)}
    warnings = workdir / "warnings.jsonl"
    said = warnings.read_bytes().splitlines() if warnings.is_file() else [b""]
    if all(b"spent waiting for data" in line or b"still being written" in line for line in said):
        names.discard(warnings.name)
    return {re.sub(r"events\.out\.tfevents.*", "events", name) for name in names}


if __name__ == "__main__":
    write(Path(sys.argv[1]))  # to inspect a case by hand
