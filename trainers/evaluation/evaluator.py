"""Evaluation: each held-out example counts exactly once, for any batch size.

If the task compares examples with each other (`all_rows`), it compares the examples of one batch on all replicas.
"""

import functools
import math
from collections.abc import Callable, Iterator
from typing import Any

import gin
import tensorflow as tf

from core.arguments import is_size
from core.checkpoint import Better
from core.data import PerReplica, Source, eval_chunks
from core.distribution import Exchange
from core.engine.inspect_phase import describe_loss
from core.engine.side_effects import paths_by_id
from core.errors import ConfigurationError, shown
from core.module import named_variables
from core.task import Batch
from core.task.guards import refuse_mixed_rows
from core.task.loss import EVALUATE, means
from trainers.errors.bad_examples import blamed_feature, unfit_example
from trainers.errors.tensorflow import explained
from trainers.evaluation.averaged_weights import Averaged, averaged_task, readable_task
from trainers.evaluation.sums import ChunkSums
from trainers.experiment import Experiment
from trainers.options.checkpoints import check_figure
from trainers.options.eval_sources import EVAL, refused_by_its_shape
from trainers.options.sizes import MOST


@gin.configurable
class Evaluator:
    """Evaluates a task on a source.

    If an optimizer averages the weights, the averages are evaluated. The last batch is padded, but the task gets only
    real examples. Evaluators in `beside` share their averaged weights with this evaluator, and for chunks of equal
    shape also their traced functions.
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
        """Traces the evaluation; raises an error if its metrics would depend on the batch size."""
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
        """Returns the metrics of the task's `evaluate` over the whole source; calls `alive` after each chunk."""
        self.averaged.update()
        sums = self.sums.spec.zero_sums()
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
        """Raises a `DataError` if one non-finite example is the reason why the metric `name` isn't finite."""

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
        """Compiles evaluations before training, on the platforms where the first evaluation would be too late."""
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
        """Yields `(split, metrics)` for each held-out source; calls `alive` after each chunk of batches."""
        self.check()
        for split, evaluator in self._evaluators.items():
            yield split, evaluator.evaluate(alive)


def short_name(split: str, figure: str) -> str:
    """Returns a metric's name in results and gin files, without the split `eval`.

    >>> short_name("eval", "accuracy"), short_name("eval/noisy", "accuracy"), short_name("quality", "accuracy")
    ('accuracy', 'noisy/accuracy', 'quality/accuracy')
    """
    return f"{split}/{figure}".removeprefix(f"{EVAL}/")
