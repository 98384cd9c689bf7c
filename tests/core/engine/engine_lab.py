"""Trains a task on any number of replicas, to compare the outcomes."""

import numpy as np

from core.testing import Run, assemble, on_virtual_cpus

STEPS = 20


def train(task_class, data, replicas, microbatches, *, steps=STEPS, placements=None, one_device=(), **settings):
    """What some steps led to, and the step itself."""
    strategy = on_virtual_cpus(replicas)
    assembly = assemble(task_class, strategy, placements=placements or {}, one_device=one_device, seed=1)
    run = Run(assembly, data, microbatches=microbatches, seed=7, **settings)
    return run.train(steps), run.step


def assert_same(found, expected):
    """Variables and norms within 1e-5, figures within 2e-6, relative to what is larger than one.

    A gradient is a sum over rows and pixels, each order of which rounds in its own way: a convolution's has thousands
    of terms, and processors differ in how they add them up. What it does to variables is what its norm may show.
    """
    (mine, _), (its, _) = found, expected
    for path, value in (its.variables | its.norms).items():
        np.testing.assert_allclose((mine.variables | mine.norms)[path], value, rtol=1e-5, atol=1e-5, err_msg=path)
    for name, value in its.figures.items():
        np.testing.assert_allclose(mine.figures[name], value, rtol=2e-6, atol=2e-6, err_msg=name)
