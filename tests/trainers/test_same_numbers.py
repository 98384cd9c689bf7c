"""XLA computes the same: to 1e-6 after one step, to 1e-4 after a hundred.

Two programs round differently. At a rectifier's corner, or with a large rate, a difference of 2e-7 in one weight grows
as fast without XLA. Tasks of a hundred steps are therefore stable ones, and a GAN has few steps.
"""

import functools

import numpy as np
import pytest

from core.data import digits, topics
from core.optimizers import adamw, chain, clip_by_global_norm, ema, sgd
from core.testing.replicas import on_virtual_cpus
from models.classifiers.mlp import Mlp, MlpClassifier
from models.language.task import LanguageModel
from tests.models.gan.gan_lab import made
from tests.trainers.test_refused_by_xla import convnet
from tests.trainers.trainer_lab import make


class Dropping(Mlp):
    """Drops some of its inputs at random, so that one layer is enough to depend on the random numbers of a step."""

    def __call__(self, x, rng=None):
        return super().__call__(self.dropout(x, rng), rng)


def mlp(*, rng):
    task = MlpClassifier(rng=rng, sizes=[64, 10], optimizer=sgd(0.1, momentum=0.9))
    task.net = Dropping([64, 10], rng=rng, dropout=0.1)
    return task


def clipped(*, rng):
    rules = chain(clip_by_global_norm(0.1), adamw(3e-3), ema(0.9))
    return MlpClassifier(rng=rng, sizes=[64, 16, 10], dropout=0.1, optimizer=rules)


def text(*, rng):
    return LanguageModel(
        rng=rng, vocabulary=257, context=8, num_layers=1, size=16, num_heads=2, optimizer=sgd(0.1, momentum=0.9)
    )


# Each with the steps that are compared, after the first.
TASKS = {
    "mlp": (mlp, 100),
    "clipped": (clipped, 100),
    "text": (text, 100),
    "gan": (made(), 10),
    "convnet": (convnet, 1),
}


def taken(tmp_path, name, compile, replicas, microbatches):
    """Takes the steps of a task; returns all variables by path, after the first step and the last."""
    task, steps = TASKS[name]
    trainer = make(
        tmp_path,
        compile,
        task=task,
        source=topics("train", length=8) if name == "text" else digits("train"),
        strategy=on_virtual_cpus(replicas) if replicas > 1 else None,
        compile=compile,
        microbatches=microbatches,
        global_batch_size=16,
        steps=steps,
        log_every=None,
        chunk_steps=min(steps, 10),
    )
    numbers, chunks = [], trainer.input.chunks_from(0)
    while trainer.step < steps:
        done = trainer.step % trainer.input.chunk_steps
        if done == 0:
            stacked = next(chunks)
        if trainer.step == 0:
            trainer.warm_up(stacked)
        trainer.take_steps(stacked, 1 if trainer.step == 0 else trainer.input.chunk_steps - done, run=trainer.chunk)
        numbers.append({path: variable.numpy() for path, variable in trainer.state.variables.items()})
    return numbers[0], numbers[-1]


def assert_same(one, other, to):
    """Asserts that each variable differs by at most this part of its norm; squares by twice as much.

    A variable of rounding size only, such as a key's bias, has no norm to compare with: it counts as a hundredth of the
    average.
    """
    floats = [x for x in one.values() if x.dtype.kind == "f"]
    mean = np.sqrt(sum(np.sum(x**2) for x in floats) / sum(x.size for x in floats))
    for path, x in one.items():
        if x.dtype.kind != "f":
            np.testing.assert_array_equal(other[path], x, err_msg=path)
            continue
        size = max(np.linalg.norm(x), 1e-2 * mean * np.sqrt(x.size))
        part = np.linalg.norm(other[path] - x) / size
        assert part <= to * (2.0 if "/v/" in path else 1.0), path


PLAIN = ("mlp", 1, 2)
LONG = [("clipped", 2, 2), ("text", 1, 1), ("gan", 2, 1), ("convnet", 1, 2)]


@pytest.fixture(scope="module")
def outcome(tmp_path_factory):
    """Returns a task's results for a value of `Trainer.compile`; each is trained once."""
    return functools.cache(lambda *how: taken(tmp_path_factory.mktemp("run"), *how))


@pytest.mark.parametrize("how", [PLAIN, *(pytest.param(how, marks=pytest.mark.long) for how in LONG)], ids=str)
def test_xla_changes_rounding_alone(how, outcome):
    name, *split = how
    plain, compiled = (outcome(name, word, *split) for word in ("off", "xla"))
    assert_same(plain[0], compiled[0], 1e-6)
    assert_same(plain[1], compiled[1], 1e-4)


@pytest.mark.long
def test_compiled_program_computes_the_same_bits_twice(outcome, tmp_path):
    again = taken(tmp_path, "mlp", "xla", 1, 2)[1]
    for path, x in outcome("mlp", "xla", 1, 2)[1].items():
        np.testing.assert_array_equal(again[path], x, err_msg=path)
