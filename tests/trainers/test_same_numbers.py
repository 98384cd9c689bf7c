"""What XLA compiles computes the same: to 1e-6 after one step, to 1e-4 after a hundred, as far as none is chaos.

Two programs differ in their last bits, and what a step makes of a last bit is the task's own: where a rectifier turns,
or a rate is large, one weight that is moved by 2e-7 grows into as much without XLA, as fast. So rows of a hundred steps
are of tasks that forget, and a GAN has few steps.
"""

import numpy as np
import pytest

from core.data import topics
from core.optimizers import adamw, chain, clip_by_global_norm, ema, sgd
from core.testing.replicas import on_virtual_cpus
from models.classifiers.mlp import MlpClassifier
from models.language.task import LanguageModel
from tests.models.gan.gan_lab import made, tiny_dcgan
from tests.trainers.test_refused_by_xla import convnet
from tests.trainers.trainer_lab import make, small_mlp


def clipped(*, rng):
    rules = chain(clip_by_global_norm(0.1), adamw(3e-3), ema(0.9))
    return MlpClassifier(rng=rng, sizes=[64, 16, 10], dropout=0.1, optimizer=rules)


def text(*, rng):
    return LanguageModel(
        rng=rng, vocabulary=257, context=8, num_layers=1, size=16, num_heads=2, optimizer=sgd(0.1, momentum=0.9)
    )


# Each with the steps that are compared, after the first.
TASKS = {
    "mlp": (small_mlp, 100),
    "clipped": (clipped, 100),
    "text": (text, 100),
    "gan": (made(), 10),
    "convnet": (convnet, 1),
    "dcgan": (made(networks=tiny_dcgan()), 1),
}


def taken(tmp_path, name, compile, *, replicas=1, microbatches=1):
    """Takes the steps of a task; returns all its numbers by path, after the first step and the last."""
    task, steps = TASKS[name]
    trainer = make(
        tmp_path,
        compile,
        task=task,
        source=topics("train", length=8) if name == "text" else None,
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
    """Asserts that each variable differs by at most so small a part of its norm; squares by twice as much.

    What is nothing but the last bits of others, as the gradient of a key's bias is, has no size of its own to be a part
    of: less than a hundredth of what all have on average counts as that.
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


@pytest.mark.parametrize(
    ("name", "replicas", "microbatches"),
    [
        pytest.param(name, *how, marks=() if (name, *how) in (("mlp", 1, 1), ("gan", 1, 2)) else pytest.mark.long)
        for name in TASKS
        for how in ((1, 1), (1, 2), (2, 2))
    ],
)
def test_xla_changes_last_bits_alone(name, replicas, microbatches, tmp_path):
    plain, compiled = (
        taken(tmp_path, name, word, replicas=replicas, microbatches=microbatches) for word in ("off", "xla")
    )
    assert_same(plain[0], compiled[0], 1e-6)
    assert_same(plain[1], compiled[1], 1e-4)


@pytest.mark.parametrize("compile", ["off", "xla"])
@pytest.mark.parametrize("name", ["mlp", pytest.param("gan", marks=pytest.mark.long)])
def test_a_program_run_twice_computes_the_same_bits(name, compile, tmp_path):
    once, again = (taken(tmp_path / run, name, compile)[1] for run in ("once", "again"))
    for path, x in once.items():
        np.testing.assert_array_equal(again[path], x, err_msg=path)
