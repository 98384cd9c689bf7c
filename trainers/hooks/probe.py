"""Linear probe: accuracy of a linear classifier on features learnt without labels.

In a gin file:

    Trainer.hooks = [@LinearProbe()]
    LinearProbe.every = 500
"""

from collections.abc import Callable, Mapping
from typing import Any

import gin
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from core import arguments, losses
from core.cluster import is_chief
from core.data import Source, Stream, check_feature
from core.errors import ConfigurationError
from core.optimizers import adam
from core.precision import EVALUATE
from core.task import Batch, Task
from trainers.errors.tensorflow import explained
from trainers.hooks import Hook, Run

Array = npt.NDArray[Any]

ROWS = 256  # whose features are computed at once
FIT_STEPS, RATE, PENALTY = 300, 0.1, 0.01  # Adam on the whole set; the penalty is on squared weights
DRAWS = 5  # random choices of few labels to average over


@gin.configurable
class LinearProbe(Hook):
    """Fits logistic regressions to the task's `features(batch)` [rows, size] of the training source.

    Accuracies are measured on the evaluation source: `accuracy` is fitted to all labels, `few` to `labels` examples per
    class. For comparison, `few_pixels` uses the pixels of `image` as features, and `few_untrained` an untrained
    network. `few_gain` is `few - max(few_pixels, few_untrained)`.
    """

    def __init__(self, every: int | None = None, *, labels: int = 10):
        super().__init__(every)
        arguments.check_size(**{"LinearProbe.labels": labels})
        self.labels = labels
        self._untrained: Task | None = None
        self._baselines: dict[str, float] = {}

    def check(self, run: Run) -> None:
        _features_of(run.experiment.task)
        for source in (run.experiment.train_source, run.experiment.eval_source):
            _checked(source)

    def __call__(self, run: Run) -> None:
        run.averaged.update()
        if self._untrained is None:
            self._untrained = run.experiment.make_task()  # on every worker, because making variables is collective
        if not is_chief():
            return
        train, held_out = (_checked(source) for source in (run.experiment.train_source, run.experiment.eval_source))
        narrowing = run.experiment.narrowing(EVALUATE, train.spec)
        target, truth = (_gathered(source, lambda batch: batch["label"]) for source in (train, held_out))
        draws = [_draw(target, self.labels, run.experiment.seed + i) for i in range(DRAWS)]

        def few(features: tuple[Array, Array]) -> float:
            known, asked = features
            found = [probe_accuracy(known[i], target[i], asked, truth) for i in draws]
            return float(np.mean(found))

        def made(fn: Callable[[Batch], tf.Tensor]) -> tuple[Array, Array]:
            return _gathered(train, fn), _gathered(held_out, fn)

        def features_of(task: Task) -> tuple[Array, Array]:
            return made(lambda batch: narrowing.call(_features_of(task), batch))

        if not self._baselines:
            pixels = made(lambda batch: tf.reshape(batch["image"], [tf.shape(batch["image"])[0], -1]))
            self._baselines = {"few_pixels": few(pixels), "few_untrained": few(features_of(self._untrained))}
        own = features_of(run.averaged.task)
        figures = {"accuracy": probe_accuracy(own[0], target, own[1], truth), "few": few(own), **self._baselines}
        run.report("probe", {**figures, "few_gain": figures["few"] - max(self._baselines.values())})


def probe_accuracy(features: Array, labels: Array, asked: Array, truth: Array) -> float:
    """Fits a logistic regression to `features` and `labels`. Returns its accuracy on `asked` with labels `truth`."""
    mean, deviation = features.mean(0), features.std(0) + 1e-3 * features.std()
    known, others = (tf.constant((x - mean) / deviation, tf.float32) for x in (features, asked))
    logits = _fitted(known, tf.constant(labels, tf.int32), others, int(labels.max()) + 1)
    return float(np.mean(np.argmax(logits.numpy(), axis=1) == truth))


@tf.function(autograph=False)
def _fitted(known: tf.Tensor, labels: tf.Tensor, asked: tf.Tensor, classes: int) -> tf.Tensor:
    """Fits a logistic regression to `known` [rows, size] and `labels`. Returns the logits of `asked` [rows, size]."""
    rule, root = adam(RATE), float(known.shape[1]) ** 0.5  # one rate for any number of features
    weights = {"w": tf.zeros([known.shape[1], classes]), "b": tf.zeros([classes])}

    def logits(x: tf.Tensor, weights: Mapping[str, tf.Tensor]) -> tf.Tensor:
        return tf.matmul(x, weights["w"] / root) + weights["b"]

    def step(i: tf.Tensor, weights: Any, state: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(weights)
            cost = tf.reduce_mean(losses.softmax_cross_entropy(logits(known, weights), labels))
            cost += PENALTY * tf.reduce_sum(tf.square(weights["w"] / root))
        updates, state = rule.update(tape.gradient(cost, weights), state, weights, step=i)
        return i + 1, {path: weights[path] + updates[path] for path in weights}, state

    start = (tf.constant(0, tf.int64), weights, rule.init(weights))
    _, weights, _ = tf.while_loop(lambda i, *_: i < FIT_STEPS, step, start)
    return logits(asked, weights)


def _draw(labels: Array, count: int, seed: int) -> Array:
    """Returns the indices of `count` random examples of each class."""
    random = np.random.RandomState(seed)
    return np.concatenate([random.permutation(np.flatnonzero(labels == c))[:count] for c in np.unique(labels)])


def _features_of(task: Task) -> Callable[[Batch], tf.Tensor]:
    features: Callable[[Batch], tf.Tensor] | None = getattr(task, "features", None)
    if features is None:
        raise ConfigurationError(
            f"`LinearProbe` needs features, but `{type(task).__name__}` has none: give it `features(batch)`, which "
            "returns [rows, size]."
        )
    return features


def _checked(source: Source | Stream | None) -> Source:
    if source is None:
        raise ConfigurationError("`LinearProbe` needs held-out examples: bind `Experiment.eval_source`.")
    if isinstance(source, Stream):
        raise ConfigurationError(
            f"`LinearProbe` reads all examples of `Experiment.train_source`, but `{source.name}` is a stream: remove "
            "the hook, or train on a source."
        )
    for feature in ("image", "label"):
        check_feature(source, feature)
    return source


def _gathered(source: Source, fn: Callable[[Batch], tf.Tensor]) -> Array:
    """Returns the results of `fn(batch)` for all examples of `source`, concatenated: [examples, ...]."""
    with explained(source):
        starts = range(0, len(source), ROWS)
        indices = (tf.range(i, min(i + ROWS, len(source)), dtype=tf.int64) for i in starts)
        parts = [fn(source.gather(some)).numpy() for some in indices]
    return np.concatenate(parts)
