"""Many steps for one call from Python: a chunk of steps runs inside one traced function.

The chunk's batches arrive stacked, `[chunk_steps, microbatches, rows, ...]`, so that nothing has to be fetched on the
way. Chunks are aligned: one always covers the steps from a multiple of `chunk_steps` on, and a run that stops or starts
in between takes part of it.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import tensorflow as tf

from core.loss_spec import Sums
from core.task import Batch
from trainers.step import StepResult, TrainStep


class ChunkResult(NamedTuple):
    """What a chunk of steps hands on to the next."""

    bad_step: tf.Tensor  # the number of the first step that wasn't finite; ALL_WELL while there is none
    sums: Mapping[str, Sums]  # by phase, since they were last taken


ALL_WELL = -1


def make_chunk(
    train_step: TrainStep, stacked_spec: Mapping[str, tf.TensorSpec], *, compile: bool = False
) -> Callable[[Batch, tf.Tensor, tf.Tensor, Mapping[str, Sums]], ChunkResult]:
    """`chunk(stacked, place, bad_step, sums)`; `place` is three steps: the chunk's first, where to begin, where to end.

    A step that isn't finite writes nothing and ends its chunk, and the ones after it do nothing at all: so the host
    needn't wait for the outcome of each chunk.
    """
    strategy = train_step.strategy

    def chunk(stacked: Batch, place: tf.Tensor, bad_step: tf.Tensor, sums: Mapping[str, Sums]) -> ChunkResult:
        first, begin, end = tf.unstack(place)

        # The loop counts places in the chunk, not steps: were a place computed from `first`, XLA would take `first` for
        # a constant and compile every chunk anew.
        def body(i: tf.Tensor, _: tf.Tensor, sums: Mapping[str, Sums]) -> Any:
            step = first + i
            values = strategy.run(lambda batch, i: {key: x[i] for key, x in batch.items()}, args=(stacked, i))
            result: StepResult = train_step(values, step)
            added = tf.nest.map_structure(tf.add, sums, dict(result.sums))
            return i + 1, tf.where(result.healthy, tf.constant(ALL_WELL, tf.int64), step), added

        def unfinished(i: tf.Tensor, bad_step: tf.Tensor, _: Any) -> tf.Tensor:
            return (bad_step == ALL_WELL) & (i < end - first)

        return ChunkResult(*tf.while_loop(unfinished, body, (begin - first, bad_step, sums))[1:])

    sums_spec = {phase: dict(spec.sums) for phase, spec in train_step.specs.items()}
    signature = (dict(stacked_spec), tf.TensorSpec([3], tf.int64), tf.TensorSpec([], tf.int64), sums_spec)
    # A signature makes a changed shape an error that names the argument, instead of a silent second trace.
    return tf.function(chunk, input_signature=signature, autograph=False, jit_compile=compile or None)
