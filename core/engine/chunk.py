"""Chunks: one call from Python runs many steps in one traced function.

A chunk's batches arrive stacked, `[chunk_steps, microbatches, rows, ...]`, so no step has to fetch data. Each chunk
begins at a multiple of `chunk_steps`. If a run starts or stops within a chunk, only part of the chunk runs.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from core.distribution.exchange import Exchange
from core.engine.progress import ALL_WELL, Progress
from core.engine.step import StepResult, TrainStep
from core.task import Batch
from core.task.loss import Sums

Taken = tuple[tf.Tensor, Mapping[str, Sums]]  # the step that isn't finite, or `ALL_WELL`; the sums so far
# (the chunk's batches, its first step, where to begin, where to end, the state before) -> the state after
TakeSteps = Callable[[Batch, tf.Tensor, tf.Tensor, tf.Tensor, Taken], Taken]


def make_chunk(
    train_step: TrainStep, stacked_spec: Mapping[str, tf.TensorSpec], progress: Progress, take: TakeSteps | None = None
) -> Any:
    """Returns `chunk(stacked, place)`, where `place` is `[first, begin, end]`.

    `first` is the first step of the chunk. The steps from `begin` up to `end` are run. Callers convert `place` with
    `Backend.handed`. `take` runs the steps, by default one by one. A step that isn't finite ends its chunk. Later
    chunks then do nothing, so the host needn't wait for each chunk's outcome.
    """
    backend = train_step.backend
    if (own := backend.chunk(train_step, stacked_spec, progress)) is not None:
        return own
    take = take or functools.partial(take_steps, train_step)

    def chunk(stacked: Batch, place: tf.Tensor) -> None:
        # Before the loop: an unsharded stack can't be sliced into sharded batches.
        stacked = {key: backend.by_rows(x, 2) for key, x in stacked.items()}
        first, begin, end = tf.unstack(backend.taken(place, tf.int64))
        before = (progress.bad_step.read_value(), progress.read_sums())
        bad_step, sums = take(stacked, first, begin, end, before)
        progress.bad_step.assign(bad_step)
        progress.write_sums(sums)

    # With a signature, a changed shape is an error that names the argument, not a silent second trace.
    place_spec = tf.type_spec_from_value(backend.handed(tf.zeros([3], tf.int64)))
    signature = (dict(stacked_spec), place_spec)
    return tf.function(chunk, input_signature=signature, autograph=False, jit_compile=train_step.whole or None)


def batch_at(exchange: Exchange, stacked: Batch, i: tf.Tensor) -> Batch:
    """Returns batch `i` of the `stacked` batches of a chunk. Each replica gets its own rows."""
    batch: Batch = exchange.run(lambda batch, i: {key: tf.gather(x, i) for key, x in batch.items()}, stacked, i)
    return batch


def take_steps(
    train_step: TrainStep, stacked: Batch, first: tf.Tensor, begin: tf.Tensor, end: tf.Tensor, before: Taken
) -> Taken:
    """Runs the steps of a chunk from `begin` up to `end`. A step that isn't finite is the last one."""
    exchange = train_step.exchange

    # The loop counts indices in the chunk, not steps: if an index were computed from `first`, XLA would treat `first`
    # as a constant and compile every chunk again.
    def body(i: tf.Tensor, _: tf.Tensor, sums: Mapping[str, Sums]) -> Any:
        step = first + i
        result: StepResult = train_step(batch_at(exchange, stacked, i), step)
        added = tf.nest.map_structure(tf.add, sums, dict(result.sums))
        return i + 1, tf.where(result.healthy, tf.constant(ALL_WELL, tf.int64), step), added

    def unfinished(i: tf.Tensor, bad_step: tf.Tensor, _: Any) -> tf.Tensor:
        return (bad_step == ALL_WELL) & (i < end - first)

    with train_step.backend.around_loop():
        _, bad_step, sums = tf.while_loop(unfinished, body, (begin - first, *before))
    return bad_step, sums
