"""Trains a task on one device and at one worker with two servers, and returns the differences.

One process is the chief of all runs: it reads names on stdin, a line each, and answers each with a line of JSON.
"""

import ctypes
import functools
import json
import os
import signal
import sys
import tempfile
from pathlib import Path

import numpy as np
import tensorflow as tf

from core.data import ArraySource
from core.distribution import one_device
from core.engine import Progress, TrainStep, make_chunk
from core.errors import ConfigurationError
from core.parallel.parameter_server import ServedStrategy
from core.task import Task
from core.task.loss import means
from models.classifiers import resnet
from tests.commands import said
from tests.served.processes import started
from tests.served.subjects import DIVIDED, served_subject
from trainers.evaluation.evaluator import Evaluator
from trainers.launch.commands import free_ports

STEPS, MICROBATCHES = 6, 2


_process = functools.cache(lambda: started("tests.served.twice"))


def differences(name, timeout=600):
    """Returns the differences of variables, metrics and evaluation; or the reason for a refusal."""
    _process().write(f"{name}\n".encode())
    assert said(_process(), timeout), f"`{name}` takes more than {timeout} s"
    return json.loads(_process().readline())


def serving(servers=2):
    """Starts a worker and servers as forks, before TensorFlow has threads; returns the chief's handle on them."""
    ports = [f"127.0.0.1:{port}" for port in free_ports(servers + 2)]
    cluster = tf.train.ClusterSpec({"chief": ports[:1], "worker": ports[1:2], "ps": ports[2:]})
    for job, index in (("worker", 0), *(("ps", i) for i in range(servers))):
        if not os.fork():
            ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # it ends with its parent
            server = tf.distribute.Server(cluster, job_name=job, task_index=index, protocol="grpc")
            signal.pause()
            del server
    return ServedStrategy(cluster)


def trained(subject, strategy):
    """Returns variables, metrics and evaluation after a chunk of steps."""
    batches = _stacked(subject.batch)
    experiment = subject.experiment(strategy)
    spec = {key: tf.TensorSpec(x.shape[1:], x.dtype) for key, x in batches.items()}
    step = TrainStep(experiment.assembly, spec, seed=0, steps=1000)
    progress = Progress({name: s.sums_of_update for name, s in step.specs.items()}, strategy=experiment.strategy)
    stacked_spec = {key: tf.TensorSpec(x.shape, x.dtype) for key, x in batches.items()}
    chunk = make_chunk(step, stacked_spec, progress).get_concrete_function()
    chunk(batches, tf.constant([0, 0, STEPS], tf.int64))
    step.backend.settle(chunk)
    sums = progress.read_sums()
    assert int(progress.bad_step) < 0
    figures = {f"{phase}/{name}": float(x) for phase in sums for name, x in means(sums[phase]).items()}
    variables = {path: v.numpy() for path, v in experiment.assembly.variables.items()}
    if type(experiment.task).evaluate is Task.evaluate:
        return variables, figures, {}
    held_out = ArraySource({key: x.numpy()[:12] for key, x in subject.batch.items()}, name="held out")
    evaluation = Evaluator(experiment, held_out, global_batch_size=8).evaluate()
    return variables, figures, evaluation


def _stacked(batch):
    """Stacks a batch for a chunk of steps, each of which sees its rows in another order."""
    rows = next(iter(batch.values())).shape[0]
    order = tf.constant([np.random.RandomState(i).permutation(rows) for i in range(STEPS)])
    shape = [STEPS, MICROBATCHES, rows // MICROBATCHES]
    return {key: tf.reshape(tf.gather(x, order), [*shape, *x.shape[1:]]) for key, x in batch.items()}


def _difference(found, expected):
    """Returns the largest difference by path, relative to values above one, among unequal ones."""
    assert found.keys() == expected.keys()
    arrays = {path: (np.asarray(found[path]), np.asarray(expected[path])) for path in expected}
    unlike = {path: both for path, both in arrays.items() if both[0].tobytes() != both[1].tobytes()}
    return {
        path: float(np.max(np.abs(a.astype(float) - b) / np.maximum(1.0, np.abs(b)))) for path, (a, b) in unlike.items()
    }


def compared(name, strategy):
    """Returns the differences of variables, metrics and evaluations, or the reason why the servers refused."""
    with tempfile.TemporaryDirectory() as scratch:
        subject = served_subject(name, Path(scratch))
        strategy.divide_by_staleness = name == DIVIDED
        try:
            served = trained(subject, strategy)
        except ConfigurationError as error:
            return {"refused": str(error)}
        alone = trained(subject, one_device())
    names = ("variables", "figures", "evaluation")
    return {name: _difference(*both) for name, *both in zip(names, served, alone, strict=True)}


def main():
    """Answers names, a line each, with lines of JSON."""
    strategy = serving()
    # One block whose shortcut is the identity, one whose shortcut is a convolution.
    resnet.BLOCKS.update(dict.fromkeys(resnet.BLOCKS, (1, 1)))
    for line in sys.stdin:
        print(json.dumps(compared(line.strip(), strategy)), flush=True)
    os._exit(0)
