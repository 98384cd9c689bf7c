"""The asynchronous run under test: it counts its steps, so that a lost or repeated one shows.

The gradient of each weight is one, and SGD adds one a step: a weight is the number of steps that were applied. Each
example holds one distinct bit. Over an epoch's steps, their mean equals that of all examples, unless one was skipped.
"""

import json
from pathlib import Path
from typing import Any

MODULE = '''
import sys

import gin
import tensorflow as tf

from core.data import ArraySource
from core.module import Module
from core.optimizers import sgd
from core.task import Loss, Task, Update
from trainers.hooks import Hook


def section(name):
    with open("journal.txt", "a") as journal:
        print(name, file=journal)


class Net(Module):
    def __init__(self):
        super().__init__()
        for i in range(4):  # more than there are servers
            setattr(self, f"w{i}", tf.Variable(tf.zeros([i + 1])))


@gin.configurable
class Counted(Task):
    def __init__(self, *, rng):
        super().__init__()
        self.net = Net()

    def phases(self):
        return [Update("net", loss=self.loss, trains=self.net, optimizer=sgd(1.0))]

    def values(self):
        return tf.concat([self.net.w0, self.net.w1, self.net.w2, self.net.w3], 0)

    def loss(self, batch, rng):
        each = tf.zeros_like(batch["example"])
        return Loss(each - tf.reduce_sum(self.values()), metrics={"example": batch["example"]})

    def evaluate(self, batch):
        found, each = self.values(), tf.zeros_like(batch["example"])
        return Loss(each, metrics={"least": each + tf.reduce_min(found), "most": each + tf.reduce_max(found)})


@gin.configurable
def numbered():
    return ArraySource({"example": [float(2**i) for i in range(20)]}, name="numbered")


@gin.configurable
class Told(Hook):
    """Says what is about to happen: it is called before an evaluation, and asked for its state before a save."""

    def __call__(self, run):
        section("evaluation")

    def state(self):
        section("save")
        return {}
'''

STEPS, EVERY, MORE = 200, 20, 20  # MORE: further steps that a run on one device takes
MEAN = (2**20 - 1) / 20  # of all examples; 20 steps of 4 examples are 4 epochs
GIN = f"""
import counted
Experiment.task = @Counted
Experiment.train_source = @numbered()
Experiment.eval_source = @numbered()
Trainer.steps = {STEPS}
Trainer.global_batch_size = 4
Trainer.log_every = {EVERY}
Trainer.evaluate_every = {EVERY}
Trainer.checkpoint_every = {EVERY}
Trainer.hooks = [@Told()]
Told.every = {EVERY}
"""


def write(folder: Path) -> None:
    """Writes the experiment into a new folder, with the run in `run` below it."""
    folder.mkdir(parents=True)
    (folder / "counted.py").write_text(MODULE)
    (folder / "counted.gin").write_text(GIN)


def miscounts(workdir: Path, steps: int) -> list[str]:
    """Lists the places in a finished workdir with a wrong number of steps."""
    import tensorflow as tf

    saved = workdir / "checkpoints" / f"step-{steps:09}"
    if not saved.exists():
        return [f"it ended without a checkpoint of step {steps}"]
    due = list(range(EVERY, steps + 1, EVERY))
    lines: dict[str, list[dict[str, Any]]] = {"train": [], "eval": []}
    for text in (workdir / "metrics.jsonl").read_text().splitlines():
        line = json.loads(text)
        lines[line["split"]].append(line)
    found = [
        f"the {split} lines are of steps {[line['step'] for line in own]}"
        for split, own in lines.items()
        if [line["step"] for line in own] != due
    ]
    for line in lines["train"]:
        if line["example"] != MEAN:
            found.append(f"up to step {line['step']} the mean of all examples is {line['example']}, not {MEAN}")
    for line in lines["eval"]:
        if not line["step"] == line["least"] == line["most"]:
            found.append(f"evaluated after step {line['step']}, weights are {line['least']} to {line['most']}")
    result = json.loads((workdir / "result.json").read_text())
    if (result["step"], result["exit_code"]) != (steps, 0):
        found.append(f"`result.json` says step {result['step']}, code {result['exit_code']}")
    reader = tf.train.load_checkpoint(str(saved / "variables"))
    for name in reader.get_variable_to_shape_map():
        if ("task." in name or "step" in name) and (values := set(reader.get_tensor(name).flat)) != {steps}:
            found.append(f"`{name}` is {values} after {steps} steps")
    return found
