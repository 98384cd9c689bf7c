"""Evaluation: each held-out example counts exactly once, whatever the batch size.

Where the task compares examples with each other (`all_rows`), it compares those of a batch, on all replicas.
"""

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

import gin
import tensorflow as tf

from core.arguments import is_size
from core.data import PerReplica, Source, eval_chunks
from core.distribution import MeshStrategy, exchange_of
from core.distribution.ledger import FIGURES
from core.distribution.shared_rows import mixing_unlike
from core.engine.describe import describe_loss
from core.errors import ConfigurationError, shown
from core.task import Batch
from core.task.guards import refuse_mixed_rows
from core.task.loss import Sums, checked, means, weighted_sums
from trainers.averaged import averaged_task
from trainers.bad_data import blamed_feature, unfit_example
from trainers.diagnosis import WRONG_ROWS, explained
from trainers.experiment import Experiment
from trainers.settings import MOST


@gin.configurable
class Evaluator:
    """Evaluates a task on a source.

    Where an optimizer keeps an average of the weights, that is what is evaluated. The last batches come padded; the
    padding is cut off before the task sees them, so that it can't count in anything.
    """

    def __init__(self, experiment: Experiment, source: Source, *, global_batch_size: int = 256):
        if not is_size(global_batch_size) or global_batch_size > MOST:
            raise ConfigurationError(
                f"`Evaluator.global_batch_size` is {shown(global_batch_size)}; it counts examples: use 1 or more, and "
                f"at most {MOST}."
            )
        if isinstance(experiment.strategy, MeshStrategy):
            experiment.strategy.plan.check_rows(global_batch_size, what="`Evaluator.global_batch_size`")
        self.averaged = averaged_task(experiment)
        self.task, self.source, self._global_batch_size = self.averaged.task, source, global_batch_size
        self._innocent: set[str] = set()  # figures that weren't finite, though no example was to blame
        self.exchange = exchange_of(experiment.strategy)
        replicas = self.exchange.replicas

        @functools.cache  # one pipeline serves all evaluations: to make it anew is to trace it anew
        def chunks(replica: int) -> tf.data.Dataset:
            return eval_chunks(source, global_batch_size=global_batch_size, replicas=replicas, replica=replica)

        self._chunks = PerReplica(chunks, experiment.strategy)
        features, mask = self._element = chunks(0).element_spec
        batches, most = -(-len(source) // global_batch_size), mask.shape[0]
        self._batches_of_chunk = [min(most, batches - first) for first in range(0, batches, most)]
        any_rows = {key: tf.TensorSpec([None, *spec.shape[2:]], spec.dtype) for key, spec in features.items()}
        self._spec = describe_loss(lambda batch, _: self.task.evaluate(batch), any_rows, "evaluate", replicas=replicas)
        for layer in self._spec.access.averages.values():
            raise ConfigurationError(
                f"`evaluate` of `{type(self.task).__name__}` normalises by its batch: it hands `Statistics` to a "
                f"`{type(layer).__name__}`, and figures would change with `Evaluator.global_batch_size`. Call the "
                "network without `statistics` where `rng` is None: it then normalises by its averages."
            )
        self._together = replicas > 1 and self._spec.access.mixes
        if replicas > 1 and not self._together and any(phase.mixes_rows for phase in experiment.assembly.phases):
            refuse_mixed_rows(self.task.evaluate, source.gather(tf.range(min(4, len(source)), dtype=tf.int64)))
        count = tf.type_spec_from_value(self.exchange.handed(tf.constant(0)))
        signature = (*self._chunks.element_spec, count)
        self._sums_of_chunk = tf.function(self._sum_chunk, input_signature=signature, autograph=False)
        self._sums_of_last = tf.function(self._sum_last, input_signature=signature[::2], autograph=False)
        self._rows_left = len(source) % global_batch_size  # in the last batch, which is smaller then
        self._traced = False

    def trace(self) -> None:
        """Compiles what evaluates on a mesh, by a chunk without a batch: what can't be there is refused here.

        Beside servers, too: a first call waits for all workers, of which later one may be stopped.
        """
        if (self.exchange.on_mesh or self.exchange.remote) and not self._traced:
            features, mask = tf.nest.map_structure(
                lambda spec: self.exchange.handed(tf.zeros(spec.shape, spec.dtype)), self._element
            )
            nothing = self.exchange.handed(tf.constant(0))
            self.exchange.noting(
                self.exchange.guarded(self._sums_of_chunk.get_concrete_function()), features, mask, nothing
            )
            if self._rows_left and self.exchange.on_mesh:
                self.exchange.noting(
                    self.exchange.guarded(self._sums_of_last.get_concrete_function()), features, nothing
                )
            self._traced = True

    def evaluate(self, alive: Callable[[], None] = lambda: None) -> dict[str, float]:
        """Returns the figures of the task's `evaluate` over the whole source; calls `alive` as it gets ahead."""
        self.averaged.update()
        sums = self._spec.zero_sums()
        self.trace()
        with explained(self.source):
            for batches, (features, mask) in zip(self._batches_of_chunk, self._chunks, strict=False):
                found = self._sums_of_chunk(features, mask, self.exchange.handed(tf.constant(batches)))
                sums = tf.nest.map_structure(tf.add, sums, found)
                alive()
            if self.exchange.on_mesh and self._rows_left:
                found = self._sums_of_last(features, self.exchange.handed(tf.constant(batches - 1)))
                sums = tf.nest.map_structure(tf.add, sums, found)
            figures = means(sums)
            for name in sorted(name for name in figures if not math.isfinite(figures[name])):
                if name not in self._innocent:
                    self._refuse_unfit_example(name, figures[name], alive)
                    self._innocent.add(name)
        return figures

    def _refuse_unfit_example(self, name: str, value: float, alive: Callable[[], None]) -> None:
        """Raises a `DataError` where the figure `name` has this value for an example that isn't finite itself."""

        def goes_wrong(batch: Batch) -> bool:
            handed = {key: self.exchange.taken(self.exchange.handed(x), x.dtype) for key, x in batch.items()}
            return not math.isfinite(means(self._sum_batch(handed))[name])

        for first in range(0, len(self.source), self._global_batch_size):
            indices = tf.range(first, min(first + self._global_batch_size, len(self.source)), dtype=tf.int64)
            batch = self.source.gather(indices)
            alive()
            feature = blamed_feature(batch, goes_wrong)
            if feature is not None:
                what = f"evaluation is not finite (`{name}` is {value})"
                raise unfit_example(what, self.source, feature, batch[feature], indices.numpy())

    def _sum_chunk(self, features: Batch, mask: tf.Tensor, batches: tf.Tensor) -> Sums:
        if self.exchange.on_mesh:
            with self.exchange.around():
                sums = self.exchange.run(self._sum_mesh, features, mask, batches)
        elif self._together:
            sums = self._sum_replicas(features, mask, batches)
        else:
            sums = self.exchange.run(self._sum_replica, features, mask)
        return dict(self.exchange.reduce(sums, phase="evaluate", what=FIGURES))

    def _sum_replicas(self, features: Batch, mask: Any, batches: tf.Tensor) -> Any:
        """Sums over a chunk of batches that all replicas take together: no collective can stand in a replica's loop.

        The last of a source's chunks may end in batches without any example: `batches` counts the others.
        """

        def add(i: tf.Tensor, features: Batch, mask: tf.Tensor, sums: Sums) -> Sums:
            rows = tf.cast(tf.reduce_sum(mask[i]), tf.int32)
            with mixing_unlike(self.exchange, "evaluate", rows, most=mask.shape[1]):
                found = self._sum_batch({key: x[i, :rows] for key, x in features.items()})
            # Who has no row takes part all the same, and adds nothing: what it makes of no rows may be anything.
            found = tf.nest.map_structure(lambda x: tf.where(rows > 0, x, tf.zeros_like(x)), found)
            return dict(tf.nest.map_structure(tf.add, sums, found))

        def body(i: tf.Tensor, sums: Any) -> Any:
            return i + 1, self.exchange.run(add, i, features, mask, sums)

        start = (tf.constant(0), self.exchange.run(lambda: dict(self._spec.zero_sums())))
        return tf.while_loop(lambda i, _: i < batches, body, start)[1]

    def _sum_replica(self, features: Batch, mask: tf.Tensor) -> Sums:
        """Sums over a chunk of batches, each of the rows that are real: a mask's ones come before its zeros."""

        def body(i: tf.Tensor, sums: Sums) -> Any:
            rows = tf.cast(tf.reduce_sum(mask[i]), tf.int32)
            real = {key: x[i, :rows] for key, x in features.items()}
            return i + 1, tf.nest.map_structure(
                tf.add, sums, tf.cond(rows > 0, lambda: self._sum_batch(real), self._spec.zero_sums)
            )

        start = (tf.constant(0), self._spec.zero_sums())
        sums = tf.while_loop(lambda i, _: i < mask.shape[0], body, start)[1]
        return dict(sums)

    def _sum_mesh(self, features: Batch, mask: tf.Tensor, batches: tf.Tensor) -> Sums:
        """Sums over the batches of a chunk that are whole: on a mesh every shape has to be known."""
        cut = {key: self.exchange.by_rows(x, 1) for key, x in self._taken(features).items()}
        mask = self.exchange.taken(mask, tf.float32)
        whole = tf.reduce_sum(tf.cast(tf.reduce_sum(mask, 1) > self._global_batch_size - 0.5, tf.int32))

        def body(i: tf.Tensor, sums: Sums) -> Any:
            found = self._sum_batch({key: tf.gather(x, i) for key, x in cut.items()})
            return i + 1, tf.nest.map_structure(tf.add, sums, found)

        return dict(tf.while_loop(lambda i, _: i < whole, body, (tf.constant(0), self._spec.zero_sums()))[1])

    def _sum_last(self, features: Batch, place: tf.Tensor) -> Sums:
        """Sums over the source's last batch on a mesh, which stands there in its chunk.

        It is a function of its own: DTensor can't lay out what is computed again for gradients twice in one.
        """

        def last(features: Batch, place: tf.Tensor) -> Sums:
            i = self.exchange.taken(place, tf.int32)
            return self._sum_batch(
                {key: tf.gather(x, i)[: self._rows_left] for key, x in self._taken(features).items()}
            )

        with self.exchange.around():
            return dict(self.exchange.run(last, features, place))

    def _taken(self, features: Batch) -> Batch:
        return {key: self.exchange.taken(x, self._element[0][key].dtype) for key, x in features.items()}

    def _sum_batch(self, batch: Mapping[str, tf.Tensor]) -> dict[str, Any]:
        first = next(iter(batch.values()))
        loss = checked(self.task.evaluate(batch), "evaluate", first.shape[0])
        rows = tf.shape(first)[0]
        tf.debugging.assert_equal(tf.shape(loss.per_example)[0], rows, WRONG_ROWS)
        return weighted_sums(loss)[1]
