"""Checks that a source is deterministic: an index gives the same example in any batch and any order."""

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from core.data import Source, position_indices, train_chunks
from core.random import Rng

_EXAMPLES = 24  # that are gathered, since a source may be slow
_POSITIONS = 4096  # whose order is checked
_FAR = 1 << 40  # a position that no run reaches
_MANY = 8  # examples; two orders of so many are hardly equal by chance

Examples = dict[str, npt.NDArray[np.generic]]


def assert_source(source: Source, *, seed: int = 0) -> None:
    """Asserts that `source` can be resumed and sharded: an index alone gives an example, and `seed` the order.

    Shards must be disjoint and complete. If a source has no custom `order`, each epoch must have every example once.
    The check reads a few examples, spread over the source, and the order of a few thousand positions.
    """
    _check_examples(source)
    _check_order(source, seed)
    _check_shards(source, seed)
    _check_resumed(source, seed)


def _check_examples(source: Source) -> None:
    """Asserts that an index gives the same example alone, with others, a second time, and in a graph."""
    size, spec = len(source), source.spec
    numbers = np.unique(np.linspace(0, size - 1, _EXAMPLES).astype(np.int64))
    whole = _gathered(source, numbers)
    found = {key: (x.dtype.name, x.shape[1:]) for key, x in whole.items()}
    promised = {key: (x.dtype.name, tuple(x.shape.as_list())) for key, x in spec.items()}
    assert found == promised, (
        f"`gather` of `{source.name}` returns {found}, but its `spec` promises {promised}: make the two agree."
    )
    repeated = np.concatenate([np.arange(len(numbers))[::-1], [0, 0]])  # other neighbours, and one of them again
    for places, what in [
        (np.arange(len(numbers)), "asked for a second time"),
        (repeated, "asked for in another order, and repeatedly"),
        (np.arange(0), "asked for no indices"),
        (np.arange(len(numbers))[-1:], "asked for alone"),
    ]:
        _check_same(source, whole, _gathered(source, numbers[places]), places, what)
    gather = tf.autograph.experimental.do_not_convert(source.gather)
    (in_graph,) = tf.data.Dataset.from_tensors(tf.constant(numbers)).map(gather)
    mapped = {key: x.numpy() for key, x in in_graph.items()}
    _check_same(source, whole, mapped, np.arange(len(numbers)), "gathered in a graph")
    if kept := source.kept:
        gathered = {key: x[tf.newaxis] for key, x in kept.gather(tf.constant(numbers)).items()}  # as microbatches are
        decoded = {key: x[0].numpy() for key, x in kept.decode(gathered).items()}
        _check_same(source, whole, decoded, np.arange(len(numbers)), "gathered as it is kept, and decoded")


def _check_order(source: Source, seed: int) -> None:
    """Asserts that a part of the order, computed alone, equals that part of the whole order."""
    size, rng = len(source), Rng.from_seed(seed)
    for start in (0, _FAR):
        positions = start + np.arange(_POSITIONS)
        whole = _order(source, positions, rng)
        assert (whole.dtype.name, whole.shape) == ("int64", positions.shape), (
            f"`order` of `{source.name}` returns {whole.dtype} {list(whole.shape)} for {len(positions)} positions; it "
            "returns the number of one example for each, int64."
        )
        outside = whole[(whole < 0) | (whole >= size)]
        assert not outside.size, (
            f"`order` of `{source.name}` names example {outside[0]}, but there are 0 to {size - 1}."
        )
        for part in (slice(0, 1), slice(5, 12), slice(_POSITIONS - 100, _POSITIONS), slice(None, None, -7)):
            assert np.array_equal(_order(source, positions[part], rng), whole[part]), (
                f"`order` of `{source.name}` gives other examples for only some of the positions, so a run couldn't be "
                "resumed or sharded: make an example depend on its position and `rng` alone."
            )
    if type(source).order is Source.order:
        whole = _order(source, np.arange(-(-_POSITIONS // size) * size), rng)
        epochs = np.sort(whole.reshape(-1, size), axis=1)
        assert np.array_equal(epochs, np.broadcast_to(np.arange(size), epochs.shape)), (
            f"an epoch of `{source.name}` doesn't hold each of its {size:,} examples once."
        )
    other = _order(source, np.arange(_POSITIONS), Rng.from_seed(seed + 1))
    assert size < _MANY or not np.array_equal(other, _order(source, np.arange(_POSITIONS), rng)), (
        f"`order` of `{source.name}` is the same for another seed: draw it from `rng`."
    )


def _check_shards(source: Source, seed: int) -> None:
    """Asserts that the examples of two or four replicas together are those of one replica."""
    steps, rows = 5, 8

    def on(replicas: int, microbatches: int, replica: int) -> npt.NDArray[np.int64]:
        indices = position_indices(
            source,
            first_step=3,
            num_steps=steps,
            global_batch_size=rows,
            microbatches=microbatches,
            seed=seed,
            replicas=replicas,
            replica=replica,
        )
        return np.asarray(indices)

    whole = on(1, 1, 0).reshape(steps, rows)
    for replicas in (2, 4):
        for microbatches in (1, 2):
            shards = [on(replicas, microbatches, replica) for replica in range(replicas)]
            together = np.stack(shards, axis=2).reshape(steps, rows)
            assert np.array_equal(together, whole), (
                f"the shards of `{source.name}` on {replicas} replicas aren't together what one replica reads: make "
                "`order` depend on the position and `rng` alone."
            )


def _check_resumed(source: Source, seed: int) -> None:
    """Asserts that a run that starts at step 4 gets the same examples as a run that reaches step 4."""

    def from_step(step: int) -> Examples:
        chunks = train_chunks(source, global_batch_size=4, microbatches=1, chunk_steps=2, first_step=step, seed=seed)
        *_, last = chunks.take((4 - step) // 2 + 1)
        return {key: x.numpy() for key, x in last.items()}

    whole, resumed = from_step(0), from_step(4)
    for key, x in whole.items():
        assert x.tobytes() == resumed[key].tobytes(), (
            f"`{key}` of `{source.name}` isn't the same if a run resumes in the middle: make an example depend on its "
            "index alone."
        )


def _check_same(source: Source, whole: Examples, found: Examples, places: npt.NDArray[np.intp], what: str) -> None:
    for key, x in whole.items():
        assert (found[key].dtype, found[key].shape) == (x.dtype, x[places].shape), (
            f"`{key}` of `{source.name}` is {found[key].dtype} {list(found[key].shape)} when {what}, and was "
            f"{x.dtype} {list(x[places].shape)} before."
        )
        assert found[key].tobytes() == x[places].tobytes(), (
            f"`{key}` of `{source.name}` isn't the same when {what}: make an example depend on its index alone; "
            "random changes belong in the step, drawn from its `rng`."
        )


def _gathered(source: Source, numbers: npt.NDArray[np.int64]) -> Examples:
    gathered = source.gather(tf.constant(numbers, tf.int64))
    return {key: tf.convert_to_tensor(x).numpy() for key, x in gathered.items()}  # a source may return arrays


def _order(source: Source, positions: npt.NDArray[np.int64], rng: Rng) -> npt.NDArray[np.int64]:
    span = int(np.ptp(positions)) + 1
    return np.asarray(source.order(tf.constant(positions, tf.int64), rng=rng, span=span))
