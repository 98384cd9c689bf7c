"""The input pipeline: selects a source's examples, and arranges them as the engine's chunks.

Input is a pure function of seed and position: example p of a run can be computed without reading earlier ones. So a run
can resume at any step, even on another number of replicas, with the same examples. A whole chunk is gathered at once,
which makes input cheap.

    >>> import numpy as np
    >>> from core.data.arrays import ArraySource
    >>> source = ArraySource({"x": np.arange(10)}, name="ten")
    >>> chunks = train_chunks(source, global_batch_size=4, microbatches=2, chunk_steps=5, seed=0)
    >>> chunk = next(iter(chunks))["x"]  # steps, microbatches, rows: 20 examples, which is two epochs
    >>> chunk.shape, sorted(chunk.numpy().ravel()) == sorted(2 * list(range(10)))
    (TensorShape([5, 2, 2]), True)
"""

import tensorflow as tf

from core.data.source import Source
from core.errors import ConfigurationError
from core.random import Rng

Features = dict[str, tf.Tensor]

_ENDLESS = 1 << 62


def train_chunks(
    source: Source,
    *,
    global_batch_size: int,
    microbatches: int,
    chunk_steps: int,
    first_step: int = 0,
    origin: int = 0,
    seed: int,
    replicas: int = 1,
    replica: int = 0,
    synthetic: bool = False,
    parallel_calls: int = 1,
    as_kept: bool = False,
) -> tf.data.Dataset:
    """Makes an endless stream of chunks `{feature: [chunk_steps, microbatches, rows, ...]}` for one replica.

    The first chunk contains `first_step`, and begins at a multiple of `chunk_steps`. `origin` is the data position of
    step 0; it differs from 0 after a resume with another batch size. `parallel_calls` chunks are gathered in parallel,
    for a slow source. `synthetic` repeats the first chunk without reading on, so that the time saved shows the cost of
    input. With `as_kept`, examples stay in the source's storage format, and steps decode them.
    """
    _check_positive(chunk_steps=chunk_steps, parallel_calls=parallel_calls)
    for name, value in {"first_step": first_step, "consumed": origin + first_step * global_batch_size}.items():
        if value < 0:
            raise ConfigurationError(f"`{name}` is {value}; it counts what came before, so give 0 or more.")
    rows = rows_of(global_batch_size, microbatches, replicas, replica)

    @tf.autograph.experimental.do_not_convert  # a source's `gather` runs as it is written
    def chunk(number: tf.Tensor) -> Features:
        indices = position_indices(
            source,
            first_step=number * chunk_steps,
            num_steps=chunk_steps,
            global_batch_size=global_batch_size,
            microbatches=microbatches,
            origin=origin,
            seed=seed,
            replicas=replicas,
            replica=replica,
        )
        return _gathered(source, indices, [chunk_steps, microbatches, rows], as_kept=as_kept)

    numbers = tf.data.Dataset.range(first_step // chunk_steps, _ENDLESS)
    if synthetic:
        return configured(tf.data.Dataset.range(1).map(chunk).cache().repeat())
    calls = parallel_calls if source.threads == 1 else max(parallel_calls, 2)
    if calls == 1:
        return configured(numbers.map(chunk))
    return configured(numbers.map(chunk, num_parallel_calls=calls), threads=max(calls, source.threads) + 1)


def position_indices(
    source: Source,
    *,
    first_step: int | tf.Tensor,
    num_steps: int,
    global_batch_size: int,
    microbatches: int = 1,
    origin: int = 0,
    seed: int,
    replicas: int = 1,
    replica: int = 0,
) -> tf.Tensor:
    """Returns the indices of these steps' examples on one replica: int64 [num_steps, microbatches, rows].

    With global batch B and k microbatches, row r of microbatch m of step s is at position
    `origin + s * B + m * (B / k) + replica * rows + r` of the training order. So a step has the same examples for any k
    and any number of replicas.
    """
    rows = rows_of(global_batch_size, microbatches, replicas, replica)
    step = tf.cast(first_step, tf.int64) + tf.range(num_steps, dtype=tf.int64)[:, None, None]
    microbatch = tf.range(microbatches, dtype=tf.int64)[:, None]
    row = replica * rows + tf.range(rows, dtype=tf.int64)
    positions = origin + step * global_batch_size + microbatch * (replicas * rows) + row
    positions = tf.maximum(positions, 0)  # only steps before the run's first can be below, and they never run
    rng = Rng.from_seed(seed).fold("order of the examples")
    indices = source.order(tf.reshape(positions, [-1]), rng=rng, span=num_steps * global_batch_size)
    return tf.reshape(indices, [num_steps, microbatches, rows])


def eval_chunks(
    source: Source, *, global_batch_size: int, chunk_batches: int = 16, replicas: int = 1, replica: int = 0
) -> tf.data.Dataset:
    """Streams all examples once, in order: `({feature: [batches, rows, ...]}, mask [batches, rows])` for one replica.

    Every chunk has the same number of batches, at most `chunk_batches`. The mask (float32) is 1 for examples, and 0 for
    padding at the end of the last batch, which repeats example 0. A batch has the same examples on any number of
    replicas. If it can't be divided evenly, the last replicas have fewer examples.
    """
    _check_positive(chunk_batches=chunk_batches, global_batch_size=global_batch_size)
    rows = -(-global_batch_size // replicas)
    rows_of(rows * replicas, 1, replicas, replica)
    size = len(source)
    batches = -(-size // global_batch_size)
    chunks = -(-batches // chunk_batches)
    in_chunk = -(-batches // chunks)  # spread evenly: 17 batches make 9 + 8, not 16 + 1

    @tf.autograph.experimental.do_not_convert
    def chunk(number: tf.Tensor) -> tuple[Features, tf.Tensor]:
        batch = number * in_chunk + tf.range(in_chunk, dtype=tf.int64)[:, None]
        place = replica * rows + tf.range(rows, dtype=tf.int64)
        positions = batch * global_batch_size + place
        real = (place < global_batch_size) & (positions < size)
        indices = tf.where(real, positions, tf.zeros_like(positions))
        return _gathered(source, indices, [in_chunk, rows]), tf.cast(real, tf.float32)

    return configured(tf.data.Dataset.range(chunks).map(chunk))


def _gathered(source: Source, indices: tf.Tensor, leading: list[int], *, as_kept: bool = False) -> Features:
    """Gathers the examples of `indices` as [*leading, ...]. Examples that don't match the spec raise a `ValueError`."""
    kept = source.kept if as_kept else None
    spec, gather = (kept.spec, kept.gather) if kept else (source.spec, source.gather)
    examples = gather(tf.reshape(indices, [-1]))
    found = {name: (value.dtype.name, tuple(value.shape[1:])) for name, value in examples.items()}
    promised = {name: (feature.dtype.name, tuple(feature.shape)) for name, feature in spec.items()}
    if found != promised:
        raise ValueError(
            f"`gather` of the source `{source.name}` returns {found}, but its `spec` promises {promised}; "
            "make the two agree (and shapes known: `tf.ensure_shape`)."
        )
    return {name: tf.reshape(value, [*leading, *spec[name].shape]) for name, value in examples.items()}


def configured(chunks: tf.data.Dataset, threads: int = 2) -> tf.data.Dataset:
    """Adds prefetching and options to a dataset of chunks. Its thread pool has `threads` threads."""
    options = tf.data.Options()
    options.deterministic = True
    # Replicas and workers request their own rows; TensorFlow's sharding would divide them a second time.
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    # A map and a prefetch have nothing to tune; the tuner's and rewriter's threads and copies only cost time.
    options.autotune.enabled = False
    options.experimental_optimization.apply_default_optimizations = False
    # A small separate pool, so that input neither waits for the step's operations nor crowds them out.
    options.threading.private_threadpool_size = threads
    # One chunk ahead: while the engine consumes one, the next is made. More would only use memory.
    return chunks.prefetch(1).with_options(options)


def rows_of(global_batch_size: int, microbatches: int, replicas: int, replica: int = 0) -> int:
    """Returns the rows of one microbatch on one replica. A batch that isn't divisible raises an error."""
    _check_positive(global_batch_size=global_batch_size, microbatches=microbatches, replicas=replicas)
    if not 0 <= replica < replicas:
        raise ConfigurationError(f"`replica` is {replica}; {replicas} replicas are numbered from 0 to {replicas - 1}.")
    parts = microbatches * replicas
    if global_batch_size % parts:
        nearest = max(1, round(global_batch_size / parts)) * parts
        raise ConfigurationError(
            f"`global_batch_size` is {global_batch_size}, which {microbatches} microbatches x {replicas} replicas "
            f"don't divide evenly; the nearest that fits is {nearest}: set `global_batch_size = {nearest}`."
        )
    return global_batch_size // parts


def _check_positive(**values: int) -> None:
    for name, value in values.items():
        if value < 1:
            raise ConfigurationError(f"`{name}` is {value}; it counts something, so give at least 1.")
