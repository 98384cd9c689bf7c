"""Estimates trace a few of many equal blocks, and scale the result to all of them."""

import dataclasses
from collections import Counter

import pytest
import tensorflow as tf

from core.distribution.shapes_only import shapes_only
from core.engine import Progress, TrainStep, assemble, assemble_task, make_chunk
from core.estimate import Repeats, on_replicas
from core.estimate.figures import Figures
from core.layers import LayerNorm, Linear, Residual, Sequential, gelu, recompute
from core.optimizers import adamw, chain, clip_by_global_norm
from core.random import Rng
from core.task import Loss, Task, Update
from core.testing import on_virtual_cpus
from models import LanguageModel

ROWS, SIZE = 64, 128


class Deep(Task):
    """Has six equal blocks, which recompute."""

    def __init__(self, *, rng):
        super().__init__()
        self.blocks = [self._block(rng.fold(i)) for i in range(6)]

    def phases(self):
        rule = chain(clip_by_global_norm(1.0), adamw(0.1))
        return [Update("net", loss=self.loss, trains=self, optimizer=rule)]

    def loss(self, batch, rng):
        x = batch["x"]
        for block in self.blocks:
            x = block(x)
        return Loss(tf.reduce_sum(tf.square(x), 1))

    def _block(self, rng):
        up, down = Linear(SIZE, 4 * SIZE, rng=rng.fold("up")), Linear(4 * SIZE, SIZE, rng=rng.fold("down"))
        return recompute(Residual(Sequential([LayerNorm(SIZE), up, gelu, down])))


def measured(task, strategy, microbatches):
    with shapes_only():
        assembly = assemble(lambda: task, strategy)
    batch = {"x": tf.TensorSpec([microbatches, ROWS, SIZE])}
    step = TrainStep(assembly, batch, seed=0, steps=10)
    progress = Progress({name: spec.sums_of_update for name, spec in step.specs.items()})
    stacked = {key: tf.TensorSpec([1, *x.shape], x.dtype) for key, x in batch.items()}
    chunk = make_chunk(step, stacked, progress).get_concrete_function()
    return on_replicas(assembly, step, chunk)


def model(*, no_decay=(), **kwargs):
    return LanguageModel(
        rng=Rng.from_seed(0), vocabulary=50, context=64, num_layers=6, size=64, num_heads=2,
        optimizer=chain(clip_by_global_norm(1.0), adamw(0.1, no_decay=no_decay)), **kwargs,
    )  # fmt: skip


@pytest.mark.long
def test_all_blocks_are_counted():
    strategy, seen = on_virtual_cpus(1), []
    with shapes_only():
        task = assemble_task(lambda: Deep(rng=Rng.from_seed(0)), strategy)

    def measure():
        seen.append(len(task.blocks))
        return measured(task, strategy, 2)

    found = Repeats(task).counted(measure)
    whole = measure()
    assert seen == [2, 3, 6]
    assert found.standing == whole.standing
    assert dict(found.held) == pytest.approx(dict(whole.held), rel=0.02, abs=100_000)


def test_cost_of_few_blocks_is_scaled_up_to_all():
    task = model()
    seen = []

    def measure():
        blocks = len(task.net.blocks)
        seen.append(blocks)
        few = {"parameters": 100 + 7 * blocks, **({"late": 1} if blocks > 2 else {})}
        return Figures(*(Counter(few) for _ in dataclasses.fields(Figures)))

    found = Repeats(task).counted(measure)
    assert seen == [2, 3]
    assert found.standing["parameters"] == 100 + 7 * 6
    assert found.operations["late"] == 4  # one more block made it once
    assert len(task.net.blocks) == 6
    whole = Repeats(task).counted(lambda: task.net.blocks[5])  # which raises while the blocks are few
    assert whole is task.net.blocks[5]


def test_blocks_that_differ_or_are_few_are_all_traced():
    task = model()
    assert Repeats(task).found
    task.net.blocks = task.net.blocks[:5]
    assert not Repeats(task).found


@pytest.mark.parametrize("marked", [lambda block: block.norm_1, lambda block: block.feed_forward.up.w])
def test_blocks_with_marks_of_their_own_are_all_traced(marked):
    task = model()
    assert Repeats(task, {id(marked(block)): "model,-" for block in task.net.blocks}).found
    assert not Repeats(task, {id(marked(block)): "model,-" for block in task.net.blocks[:3]}).found


@pytest.mark.long
def test_a_pattern_may_name_a_block_that_would_be_left_out():
    strategy = on_virtual_cpus(1)
    with shapes_only():
        task = assemble_task(lambda: model(no_decay=["blocks/5/*"]), strategy)
    repeats = Repeats(task)
    assert repeats.found

    def slots():
        with shapes_only():
            return assemble(lambda: task, strategy).variables.keys()

    assert repeats.counted(slots) == slots()
