"""The teacher is the student's average, on one replica and on two."""

import numpy as np
import pytest
import tensorflow as tf
from mean_teacher import MeanTeacher, few_labels

from core.errors import ConfigurationError
from core.optimizers import averaged, chain, ema, sgd
from core.random import Rng
from core.testing import Run, assemble, assert_replica_invariant, on_virtual_cpus

batch = few_labels().gather(tf.range(16, dtype=tf.int64))
x = tf.reshape(batch["image"], [-1, 64])


def make_task(rng=None, optimizer=None):
    return MeanTeacher(rng=rng or Rng.from_seed(0), width=8, optimizer=optimizer or chain(sgd(0.5), ema(0.5)))


def test_the_teacher_answers_as_the_average_of_the_student():
    assembly = assemble(make_task, on_virtual_cpus(1))
    net, (optimizer,) = assembly.task.net, assembly.optimizers.values()
    Run(assembly, batch).train(5)
    answers, student = averaged(net)(x), net(x).numpy()
    assert np.abs(answers - student).max() > 1e-3
    for path, value in optimizer.shadow().items():
        optimizer.parameters[path].assign(value)
    for path, value in optimizer.averaged_statistics.items():
        optimizer.statistics[path].assign(value)
    np.testing.assert_array_equal(answers, net(x))


def test_without_an_optimizer_the_teacher_is_the_student():
    task = make_task()
    np.testing.assert_array_equal(averaged(task.net)(x), task.net(x))
    assert task.loss(batch, Rng.from_seed(1)).per_example.shape == [16]


def test_a_student_without_an_average_has_no_teacher():
    with pytest.raises(ConfigurationError, match=r"averages of `Net`.*keeps none: add .*ema"):
        Run(assemble(lambda rng: make_task(rng, sgd(0.1)), on_virtual_cpus(1)), batch)


def test_two_replicas_train_it_to_the_same_numbers():
    assert_replica_invariant(make_task, batch, replicas=(1, 2), steps=3)
