"""A strategy in one file outside the checkout trains, evaluates, saves, resumes, exports and is summarised."""

import json

import pytest
from command_lab import gin

from tests.commands import CONFIGS, passed, run

STRATEGY = '''
"""One device, on which each thing that the engine asks of the exchange is written down."""

import contextlib
import pathlib

import gin
import tensorflow as tf

from core.distribution import Backend, Exchange, register

DEVICE = "CPU:0"


class Recorded:
    """One replica on one device, and no strategy of TensorFlow's."""

    num_replicas_in_sync = 1
    worker_devices = (DEVICE,)

    def __init__(self, record):
        self.record, self.extended, self.made = pathlib.Path(record), self, set()

    def variable_created_in_scope(self, variable):
        return id(variable) in self.made

    @contextlib.contextmanager
    def scope(self):
        def create(following, **kwargs):
            variable = following(**kwargs)
            self.made.add(id(variable))
            return variable

        with tf.device(DEVICE), tf.variable_creator_scope(create):
            yield

    def run(self, fn, args=()):
        with tf.device(DEVICE):
            return fn(*args)

    def experimental_local_results(self, value):
        return (value,)

    def experimental_distribute_values_from_function(self, value_of):
        return value_of(tf.distribute.get_replica_context())


class RecordedExchange(Exchange):
    def run(self, fn, *args):
        self.note("run")
        return super().run(fn, *args)

    def sum(self, values, *, phase, what):
        self.note(f"{phase}: {what}")
        return super().sum(values, phase=phase, what=what)

    def note(self, text):
        with self.strategy.record.open("a") as file:
            file.write(text + "\\n")


@register(Recorded)
class RecordedBackend(Backend):
    how = "by a record"
    not_compiled = "be recorded"

    def exchange(self, *, reduce_in=None):
        return RecordedExchange(self.strategy, reduce_in=reduce_in)

    def place_of(self, variable):
        return "the recorder"


@gin.configurable
def recorded(record="record.txt"):
    return Recorded(record)
'''
SHORT = [f"--gin_file={CONFIGS / 'digits_linear.gin'}", "--workdir=run", "--gin_param=Trainer.log_every = 10"]
SHORT += ["--gin_param=Trainer.chunk_steps = 10", "--gin_param=Trainer.evaluate_every = 10"]
SHORT += ["--gin_param=Trainer.checkpoint_every = 10"]


def lines(folder):
    """Returns the metric lines of a run by step and split, without those that depend on the machine's speed."""
    found = {}
    for text in (folder / "metrics.jsonl").read_text().splitlines():
        line = json.loads(text)
        found[line.pop("step"), line.pop("split")] = {k: x for k, x in line.items() if k in ("loss", "accuracy")}
    return found


@pytest.mark.long
def test_strategy_in_a_file_of_its_own_serves_every_mode(tmp_path):
    (tmp_path / "my_strategy.py").write_text(STRATEGY)
    own = gin(tmp_path, "import my_strategy\nExperiment.strategy = @recorded()\n")
    alone, record = tmp_path / "alone", tmp_path / "record.txt"
    alone.mkdir()

    def command(*flags):
        return passed(*SHORT, own, *flags, cwd=tmp_path)

    for steps in (10, 20):  # the second resumes from the first's checkpoint
        done = command(f"--gin_param=Trainer.steps = {steps}")
    assert "step-000000010" in done.stdout
    more = ["--gin_param=Trainer.steps = 20"]
    passed(*SHORT, *more, cwd=alone)
    assert lines(tmp_path / "run") == lines(alone / "run")
    noted = record.read_text().splitlines()
    assert {"run", "net: gradients"} <= set(noted), set(noted)
    accuracy = lines(alone / "run")[20, "eval"]["accuracy"]
    assert f"{accuracy:.4f}" in command("--mode=evaluate", *more).stdout
    assert "the recorder" in command("--mode=summary", *more).stdout
    command("--mode=export", "--format=tflite", *more)
    assert (tmp_path / "run" / "export" / "step-000000020" / "model.tflite").stat().st_size


def test_mode_refuses_a_strategy_by_what_it_can_not_do(tmp_path):
    (tmp_path / "my_strategy.py").write_text(STRATEGY.replace('how = "by', 'separable = False\n    how = "by'))
    own = gin(tmp_path, "import my_strategy\nExperiment.strategy = @recorded()\n")
    done = run(*SHORT, own, "--mode=diagnose", cwd=tmp_path)
    assert done.returncode == 2
    assert "by a record they don't" in done.stderr
    done = run(*SHORT, own, "--gin_param=Trainer.compile = 'xla'", cwd=tmp_path)
    assert (done.returncode, "which can't be recorded" in done.stderr) == (2, True)
