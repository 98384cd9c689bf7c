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


def assert_same(found, expected, *, norms=2e-6):
    """Variables within 1e-5, figures within 2e-6, norms within `norms`, relative to what is larger than one."""
    (mine, _), (its, _) = found, expected
    for path, value in its.variables.items():
        np.testing.assert_allclose(mine.variables[path], value, rtol=1e-5, atol=1e-5, err_msg=path)
    for allowed, ours, theirs in ((2e-6, mine.figures, its.figures), (norms, mine.norms, its.norms)):
        for name, value in theirs.items():
            np.testing.assert_allclose(ours[name], value, rtol=allowed, atol=allowed, err_msg=name)
