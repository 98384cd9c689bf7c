"""The input pipeline, from a `Source` to the engine's chunks: selection, order and shape of examples.

Input is a pure function of (seed, epoch, index): the p-th example of a run is known without reading earlier ones. So a
run resumes at any step, also on another number of replicas, with the same examples. Whole chunks are gathered at once,
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

    Chunks are aligned: the first contains `first_step`, and begins at the multiple of `chunk_steps` at or below it.
    `origin` is the data position of step 0, which isn't 0 after a run has resumed with another batch size. With
    `synthetic` the source is read once and the first chunk repeats: the time that this saves is the cost of input. For
    a slow source, `parallel_calls` chunks are gathered in parallel. With `as_kept`, examples come in the source's
    storage format, if it has one, and steps decode them.
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
    """Returns the examples (int64 [num_steps, microbatches, rows]) that these steps see on one replica.

    Row r of microbatch m of step s is the example at position `origin + s * B + m * (B / k) + replica * rows + r` of
    the source's endless order, with B the global batch of k microbatches. So neither k nor the number of replicas
    changes the examples of a step.
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
    """Streams every example once, in order, to one replica: `({feature: [batches, rows, ...]}, mask [batches, rows])`.

    All elements have one shape, of at most `chunk_batches` batches. Rows beyond the last example repeat example 0 with
    mask 0 (float32); all others have mask 1, and come first. A batch holds the same examples on any number of replicas:
    if the replicas don't divide it, the last ones have fewer valid rows.
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
    """Gathers the examples of `indices` with shape `leading`, and checks them against the source's spec."""
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
    """Prefetches chunks for the engine at low cost."""
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
    """Returns the rows of one microbatch on one replica."""
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
