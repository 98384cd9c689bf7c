"""Evaluation counts each held-out example once, for any batch size; long, as one pass serves every strategy.

If the task compares examples with each other (`all_rows`), it compares the examples of one batch on all replicas.
"""

import functools
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import gin
import tensorflow as tf

from core.arguments import MOST, is_size
from core.checkpoint import Better
from core.data import PerReplica, Source, eval_chunks
from core.distribution import Exchange
from core.distribution.backend import Backend
from core.distribution.ledger import FIGURES
from core.distribution.shared_rows import mixing_unlike
from core.engine.inspect_phase import LossSpec, describe_loss
from core.engine.side_effects import paths_by_id
from core.errors import ConfigurationError, shown
from core.module import named_variables
from core.precision import Narrowing
from core.task import Batch, Task
from core.task.guards import refuse_mixed_rows
from core.task.loss import EVALUATE, Sums, checked, means, weighted_sums
from core.tracing import traced_for_each
from trainers.errors.tensorflow import WRONG_ROWS, explained
from trainers.evaluation.averaged_weights import Averaged, averaged_task, readable_task
from trainers.experiment import Experiment
from trainers.options.checkpoints import check_figure
from trainers.options.eval_sources import EVAL, refused_by_its_shape


class ChunkSums:
    """Sums metrics over chunks of one shape. The traced functions are shared by all sources with such chunks.

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
        """Returns the weighted sums of `evaluate(batch)`. It is part of the traced functions for chunks."""
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

        The source's last chunk may end in empty batches. `batches` is the number of batches with examples.
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
        """Sums over a chunk of batches without padding rows. In `mask`, ones (real rows) precede zeros (padding)."""

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
        """Sums over the source's last, smaller batch on a mesh. `place` is its index in the chunk.

        This is a separate function, since DTensor can't lay out recomputed values for gradients twice in one function.
        """

        def last(features: Batch, place: tf.Tensor) -> Sums:
            i = self.backend.taken(place, tf.int32)
            return self.of_batch({key: tf.gather(x, i)[: self._last_rows] for key, x in self._taken(features).items()})

        with self.backend.around_loop():
            return dict(self.exchange.run(last, features, place))

    def _taken(self, features: Batch) -> Batch:
        return {key: self.backend.taken(x, self._element[0][key].dtype) for key, x in features.items()}


@gin.configurable
class Evaluator:
    """Evaluates a task on a source.

    If an optimizer averages the weights, the averages are evaluated. The last batch is padded, but the task gets only
    real examples. Evaluators in `beside` share their averaged weights with this one. For chunks of equal shape, they
    also share their traced functions.
    """

    def __init__(self, experiment: Experiment, source: Source, *beside: "Evaluator", global_batch_size: int = 256):
        if not is_size(global_batch_size) or global_batch_size > MOST:
            raise ConfigurationError(
                f"`Evaluator.global_batch_size` is {shown(global_batch_size)}; it counts examples: use 1 or more, and "
                f"at most {MOST}."
            )
        self.backend = experiment.assembly.backend
        self.backend.check_rows(global_batch_size, what="`Evaluator.global_batch_size`")
        self.averaged: Averaged = beside[0].averaged if beside else averaged_task(experiment)
        self.task, self.source, self._global_batch_size = self.averaged.task, source, global_batch_size
        self._innocent: set[str] = set()  # non-finite metrics that no single example caused
        self.exchange: Exchange = beside[0].exchange if beside else self.backend.exchange()
        replicas = self.exchange.replicas

        @functools.cache  # one pipeline for all evaluations, because each pipeline is traced
        def chunks(replica: int) -> tf.data.Dataset:
            return eval_chunks(source, global_batch_size=global_batch_size, replicas=replicas, replica=replica)

        self._chunks = PerReplica(chunks, experiment.strategy)
        element = chunks(0).element_spec
        batches, most = -(-len(source) // global_batch_size), element[1].shape[0]
        self._batches_of_chunk = [min(most, batches - first) for first in range(0, batches, most)]
        self._last_rows = len(source) % global_batch_size  # rows of the last batch; 0 if it is full
        known = (other.sums for other in beside if other.sums.fits(element, self._last_rows))
        self.sums: ChunkSums = next(known, None) or self._make_sums(experiment, element)

    def _make_sums(self, experiment: Experiment, element: Any) -> ChunkSums:
        """Traces the evaluation. Raises an error if its metrics would depend on the batch size."""
        any_rows = {key: tf.TensorSpec([None, *spec.shape[2:]], spec.dtype) for key, spec in element[0].items()}
        narrowing = experiment.narrowing(EVALUATE, any_rows)
        replicas, evaluate = self.exchange.replicas, self.task.evaluate
        held = paths_by_id({**experiment.variables, **named_variables(self.task)})
        spec = describe_loss(
            lambda batch, _: evaluate(batch), any_rows, EVALUATE, replicas=replicas, held=held, narrowing=narrowing
        )
        for layer in spec.access.averages.values():
            raise ConfigurationError(
                f"`evaluate` of `{type(self.task).__name__}` normalises by its batch: it passes `Statistics` to a "
                f"`{type(layer).__name__}`, so metrics would depend on `Evaluator.global_batch_size`. Call the network "
                "without `statistics` if `rng` is None: it then normalises by its averages."
            )
        together = replicas > 1 and spec.access.mixes
        if replicas > 1 and not together and any(phase.mixes_rows for phase in experiment.assembly.phases):
            some = tf.range(min(4, len(self.source)), dtype=tf.int64)
            refuse_mixed_rows(functools.partial(narrowing.call, evaluate), self.source.gather(some))
        return ChunkSums(
            self.task,
            spec,
            self.backend,
            self.exchange,
            self._chunks,
            element,
            narrowing=narrowing,
            together=together,
            batch_rows=self._global_batch_size,
            last_rows=self._last_rows,
        )

    def evaluate(self, alive: Callable[[], None] = lambda: None) -> dict[str, float]:
        """Returns the metrics of the task's `evaluate` over the whole source. Calls `alive` after each chunk."""
        self.averaged.update()
        handed, taken = self.backend.handed, self.backend.taken  # a mesh doesn't add a vector of the host to its own
        sums = tf.nest.map_structure(lambda x: taken(handed(x), x.dtype), self.sums.spec.zero_sums())
        self.sums.trace()
        with explained(self.source):
            for batches, (features, mask) in zip(self._batches_of_chunk, self._chunks, strict=False):
                found = self.sums.of_chunk(features, mask, self.backend.handed(tf.constant(batches)))
                sums = tf.nest.map_structure(tf.add, sums, found)
                alive()
            if self.backend.row_counts_apart and self._last_rows:
                found = self.sums.of_last(features, self.backend.handed(tf.constant(batches - 1)))
                sums = tf.nest.map_structure(tf.add, sums, found)
            figures = means(sums)
            for name in sorted(name for name in figures if not math.isfinite(figures[name])):
                if name not in self._innocent:
                    self._refuse_unfit_example(name, figures[name], alive)
                    self._innocent.add(name)
        return figures

    def _refuse_unfit_example(self, name: str, value: float, alive: Callable[[], None]) -> None:
        """Raises a `DataError` if the metric `name` isn't finite because of one non-finite example."""
        from trainers.errors.bad_examples import blamed_feature, unfit_example

        def goes_wrong(batch: Batch) -> bool:
            handed = {key: self.backend.taken(self.backend.handed(x), x.dtype) for key, x in batch.items()}
            return not math.isfinite(means(self.sums.of_batch(handed))[name])

        for first in range(0, len(self.source), self._global_batch_size):
            indices = tf.range(first, min(first + self._global_batch_size, len(self.source)), dtype=tf.int64)
            batch = self.source.gather(indices)
            alive()
            feature = blamed_feature(batch, goes_wrong)
            if feature is not None:
                what = f"evaluation is not finite (`{name}` is {value})"
                raise unfit_example(what, self.source, feature, batch[feature], indices.numpy())


class Evaluations:
    """Evaluates a task on each held-out source, by split.

    `bool(evaluations)` is false if there is no held-out source.
    """

    def __init__(self, experiment: Experiment):
        self._evaluators: dict[str, Evaluator] = {}
        for split, source in experiment.held_out.items():
            with refused_by_its_shape(experiment.task, experiment.train_source, split, source):
                self._evaluators[split] = Evaluator(experiment, source, *self._evaluators.values())
        evaluators = list(self._evaluators.values())
        self.averaged = evaluators[0].averaged if evaluators else averaged_task(experiment)
        self.readable = readable_task(experiment, self.averaged)
        figures = {name.partition("/")[0] for evaluator in evaluators for name in evaluator.sums.spec.sums}
        for name in experiment.eval_sources:
            if name in figures:
                raise ConfigurationError(
                    f"`Experiment.eval_sources` calls a source `{name}`, which is already a metric of "
                    f"`{type(experiment.task).__name__}.evaluate`: give the source another name."
                )

    @property
    def figures(self) -> list[str]:
        """Lists the names of all metrics, as results and gin files use them."""
        sums = {split: evaluator.sums.spec.zero_sums() for split, evaluator in self._evaluators.items()}
        return [short_name(split, name) for split, found in sums.items() for name in means(found)]

    def check_figure(self, best: Better | None) -> None:
        """Raises a `ConfigurationError` if no evaluation has the metric that `best` uses to select a checkpoint."""
        if best:
            check_figure(best, self.figures, "Trainer.keep_best")

    def __len__(self) -> int:
        return len(self._evaluators)

    def trace(self) -> None:
        """Compiles evaluations before training, if the first evaluation would be too late for this."""
        for evaluator in self._evaluators.values():
            evaluator.sums.trace()

    def check(self) -> None:
        """Raises a `ConfigurationError` if there is no held-out source."""
        if not self._evaluators:
            raise ConfigurationError(
                "there is nothing to evaluate on: bind `Experiment.eval_source`, or give several as "
                "`Experiment.eval_sources = {'clean': @digits()}`."
            )

    def evaluate(self, alive: Callable[[], None] = lambda: None) -> Iterator[tuple[str, dict[str, float]]]:
        """Yields `(split, metrics)` for each held-out source. Calls `alive` after each chunk of batches."""
        self.check()
        for split, evaluator in self._evaluators.items():
            yield split, evaluator.evaluate(alive)


def short_name(split: str, figure: str) -> str:
    """Returns a metric's name in results and gin files, without the split `eval`.

    >>> short_name("eval", "accuracy"), short_name("eval/noisy", "accuracy"), short_name("quality", "accuracy")
    ('accuracy', 'noisy/accuracy', 'quality/accuracy')
    """
    return f"{split}/{figure}".removeprefix(f"{EVAL}/")
