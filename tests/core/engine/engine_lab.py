"""Trains a task by hand, on any number of replicas, to compare the outcomes."""

import numpy as np
import tensorflow as tf

from core.data import ArraySource
from core.engine import TrainStep
from core.module import named_variables
from trainers.experiment import Experiment

STEPS = 20


def train(task_class, data, replicas, microbatches, *, steps=STEPS, **settings):
    """All variables after some steps, the figures of every step, and the step itself."""
    devices = [f"CPU:{i}" for i in range(replicas)]
    strategy = tf.distribute.MirroredStrategy(devices, tf.distribute.ReductionToOneDevice())
    experiment = Experiment(task=task_class, train_source=ArraySource(data, name="lab"), strategy=strategy, seed=1)
    rows = len(next(iter(data.values()))) // microbatches // replicas
    cut = {key: x.reshape([microbatches, replicas, rows, *x.shape[1:]]) for key, x in data.items()}
    spec = {key: tf.TensorSpec([rows, *x.shape[3:]], x.dtype) for key, x in cut.items()}
    settings = {"seed": 7, "microbatches": microbatches, "alone": experiment.alone, **settings}
    step = TrainStep(experiment.phases, experiment.optimizers, strategy=strategy, batch_spec=spec, **settings)

    @tf.function(autograph=False)
    def run(index):
        def place(context):
            return {key: tf.constant(x[:, context.replica_id_in_sync_group]) for key, x in cut.items()}

        return step(strategy.experimental_distribute_values_from_function(place), index)

    figures = [run(tf.constant(i, tf.int64)) for i in range(steps)]
    assert all(bool(result.healthy) for result in figures)
    variables = dict(named_variables(experiment.task))
    for name, optimizer in experiment.optimizers.items():
        variables |= {f"{name}/{path}": v for path, v in optimizer.variables.items()}
    for path, variable in variables.items():
        for component in strategy.experimental_local_results(variable):
            np.testing.assert_array_equal(component.numpy(), variable.numpy(), err_msg=f"drift of {path}")
    sums = [tf.nest.map_structure(lambda x: x.numpy(), dict(result.sums)) for result in figures]
    return {path: v.numpy() for path, v in variables.items()}, sums, step


def assert_same(found, expected):
    """Variables within 1e-5, figures within 1e-6, relative to what is larger than one."""
    variables, sums, _ = found
    for path, value in expected[0].items():
        np.testing.assert_allclose(variables[path], value, rtol=1e-5, atol=1e-5, err_msg=path)
    for mine, its in zip(tf.nest.flatten(sums), tf.nest.flatten(expected[1]), strict=True):
        np.testing.assert_allclose(mine, its, rtol=2e-6, atol=1e-5)
