"""Sums of a task's `evaluate` over a chunk of batches: the traced part of an evaluation."""

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from core.data import PerReplica
from core.distribution.backend import Backend
from core.distribution.exchange import Exchange
from core.distribution.ledger import FIGURES
from core.distribution.shared_rows import mixing_unlike
from core.engine.inspect_phase import LossSpec
from core.precision import Narrowing
from core.task import Batch, Task
from core.task.loss import Sums, checked, weighted_sums
from core.tracing import traced_for_each
from trainers.errors.tensorflow import WRONG_ROWS


class ChunkSums:
    """Sums metrics over chunks of one shape; the traced functions are shared by all sources with such chunks.

    Batches have `batch_rows` rows. The source's last batch has `last_rows` rows if it is smaller.
    """

    def __init__(
        self,
        task: Task,
        spec: LossSpec,
        backend: Backend,
        exchange: Exchange,
        chunks: PerReplica,
        element: tuple[Mapping[str, tf.TensorSpec], tf.TensorSpec],
        *,
        narrowing: Narrowing,
        together: bool,
        batch_rows: int,
        last_rows: int,
    ):
        self.narrowing = narrowing
        self.task, self.spec, self.backend, self.exchange = task, spec, backend, exchange
        self._element, self._together, self._batch_rows, self._last_rows = element, together, batch_rows, last_rows
        signature = (*chunks.element_spec, tf.type_spec_from_value(backend.handed(tf.constant(0))))
        self.of_chunk = traced_for_each(self._sum_chunk, input_signature=signature)
        self.of_last = traced_for_each(self._sum_last, input_signature=signature[::2])
        self._traced = False

    def fits(self, element: object, last_rows: int) -> bool:
        """Returns whether the traced functions can also sum chunks with the specs `element`, and such a last batch."""
        return bool(element == self._element) and (last_rows == self._last_rows or not self.backend.row_counts_apart)

    def trace(self) -> None:
        """Compiles the evaluation in advance, on a mesh or with parameter servers, by summing a chunk without batches.

        So errors are raised early. With parameter servers, the first call must wait for all workers, and some may be
        lost later.
        """
        if (self.backend.row_counts_apart or not self.backend.steps_here) and not self._traced:
            features, mask = tf.nest.map_structure(
                lambda spec: self.backend.handed(tf.zeros(spec.shape, spec.dtype)), self._element
            )
            nothing, ledger = self.backend.handed(tf.constant(0)), self.exchange.ledger
            self.backend.program(self.of_chunk.get_concrete_function(), ledger)(features, mask, nothing)
            if self._last_rows and self.backend.row_counts_apart:
                self.backend.program(self.of_last.get_concrete_function(), ledger)(features, nothing)
            self._traced = True

    def of_batch(self, batch: Mapping[str, tf.Tensor]) -> dict[str, Any]:
        """Returns the weighted sums of `evaluate(batch)`; the functions for chunks call this while they are traced."""
        first = next(iter(batch.values()))
        loss = checked(self.narrowing.call(self.task.evaluate, batch), "evaluate", first.shape[0])
        rows = tf.shape(first)[0]
        tf.debugging.assert_equal(tf.shape(loss.per_example)[0], rows, WRONG_ROWS)
        return weighted_sums(loss)[1]

    def _sum_chunk(self, features: Batch, mask: tf.Tensor, batches: tf.Tensor) -> Sums:
        if self.backend.row_counts_apart:
            with self.backend.around_loop():
                sums = self.exchange.run(self._sum_mesh, features, mask, batches)
        elif self._together:
            sums = self._sum_replicas(features, mask, batches)
        else:
            sums = self.exchange.run(self._sum_replica, features, mask)
        return dict(self.exchange.reduce(sums, phase="evaluate", what=FIGURES))

    def _sum_replicas(self, features: Batch, mask: Any, batches: tf.Tensor) -> Any:
        """Sums over a chunk, with one loop for all replicas, because a replica's own loop can't contain collectives.

        The source's last chunk may end in empty batches; `batches` is the number of batches with examples.
        """

        def add(i: tf.Tensor, features: Batch, mask: tf.Tensor, sums: Sums) -> Sums:
            rows = tf.cast(tf.reduce_sum(mask[i]), tf.int32)
            with mixing_unlike(self.exchange, "evaluate", rows, most=mask.shape[1]):
                found = self.of_batch({key: x[i, :rows] for key, x in features.items()})
            # Empty replicas join the collective with zeros: the values they compute from no rows are arbitrary.
            found = tf.nest.map_structure(lambda x: tf.where(rows > 0, x, tf.zeros_like(x)), found)
            return dict(tf.nest.map_structure(tf.add, sums, found))

        def body(i: tf.Tensor, sums: Any) -> Any:
            return i + 1, self.exchange.run(add, i, features, mask, sums)

        start = (tf.constant(0), self.exchange.run(lambda: dict(self.spec.zero_sums())))
        return tf.while_loop(lambda i, _: i < batches, body, start)[1]

    def _sum_replica(self, features: Batch, mask: tf.Tensor) -> Sums:
        """Sums over a chunk of batches without padding rows; in `mask`, ones (real rows) precede zeros (padding)."""

        def body(i: tf.Tensor, sums: Sums) -> Any:
            rows = tf.cast(tf.reduce_sum(mask[i]), tf.int32)
            real = {key: x[i, :rows] for key, x in features.items()}
            return i + 1, tf.nest.map_structure(
                tf.add, sums, tf.cond(rows > 0, lambda: self.of_batch(real), self.spec.zero_sums)
            )

        start = (tf.constant(0), self.spec.zero_sums())
        sums = tf.while_loop(lambda i, _: i < mask.shape[0], body, start)[1]
        return dict(sums)

    def _sum_mesh(self, features: Batch, mask: tf.Tensor, batches: tf.Tensor) -> Sums:
        """Sums over the full batches of a chunk, because a mesh needs static shapes."""
        cut = {key: self.backend.by_rows(x, 1) for key, x in self._taken(features).items()}
        mask = self.backend.taken(mask, tf.float32)
        whole = tf.reduce_sum(tf.cast(tf.reduce_sum(mask, 1) > self._batch_rows - 0.5, tf.int32))

        def body(i: tf.Tensor, sums: Sums) -> Any:
            found = self.of_batch({key: tf.gather(x, i) for key, x in cut.items()})
            return i + 1, tf.nest.map_structure(tf.add, sums, found)

        return dict(tf.while_loop(lambda i, _: i < whole, body, (tf.constant(0), self.spec.zero_sums()))[1])

    def _sum_last(self, features: Batch, place: tf.Tensor) -> Sums:
        """Sums over the source's last, smaller batch on a mesh; `place` is its index in the chunk.

        This is a separate function, since DTensor can't lay out recomputed values for gradients twice in one function.
        """

        def last(features: Batch, place: tf.Tensor) -> Sums:
            i = self.backend.taken(place, tf.int32)
            return self.of_batch({key: tf.gather(x, i)[: self._last_rows] for key, x in self._taken(features).items()})

        with self.backend.around_loop():
            return dict(self.exchange.run(last, features, place))

    def _taken(self, features: Batch) -> Batch:
        return {key: self.backend.taken(x, self._element[0][key].dtype) for key, x in features.items()}
