"""Metrics of classifiers: accuracy, precision and recall, confusion, intersection over union."""

from typing import Any, NamedTuple

import tensorflow as tf

from core import arguments
from core.choice import nan, zero_where
from core.metrics.state import poisoned, ratio, weighted_sum, weights_of


def predicted(logits: Any) -> tf.Tensor:
    """Returns the class with the largest logit, int64 [...], from logits [..., classes]; for `Confusion` and `IoU`.

    If a logit is NaN, the class is -1. `Confusion` and `IoU` then give `nan`. (`tf.argmax` would return class 0.)
    """
    logits = arguments.floats("logits", logits, min_rank=1, axes="[..., classes]")
    unknown = tf.reduce_any(tf.math.is_nan(logits), axis=-1)
    return tf.where(unknown, tf.constant(-1, tf.int64), tf.argmax(logits, axis=-1))


def accuracy(logits: Any, labels: Any) -> tf.Tensor:
    """Returns 1.0 where the label [...] has the largest of the logits [..., classes], else 0.0.

    A label out of range gives `nan`. If a logit is NaN, the answer is wrong.
    """
    logits = arguments.floats("logits", logits, min_rank=1, axes="[..., classes]")
    labels = arguments.class_indices("labels", labels, "logits", logits)
    return _where_in_range(tf.equal(predicted(logits), tf.cast(labels, tf.int64)), labels, logits)


def top_k_accuracy(logits: Any, labels: Any, *, k: int) -> tf.Tensor:
    """Returns 1.0 where the label [...] has one of the k largest logits [..., classes], else 0.0.

    A label out of range gives `nan`. Equal logits rank by index. So if all logits are equal, only the first k classes
    are right.
    """
    logits = arguments.floats("logits", logits, min_rank=1, axes="[..., classes]")
    classes = logits.shape[-1] if logits.shape.rank is not None else None
    if k < 1 or (classes is not None and k > classes):
        raise ValueError(f"`k` is {k}; it counts classes, from 1 to {classes or 'their number'}.")
    labels = arguments.class_indices("labels", labels, "logits", logits)
    indices = tf.range(tf.shape(logits, labels.dtype)[-1])
    at_label = tf.equal(indices, labels[..., tf.newaxis])
    score = tf.reduce_sum(zero_where(~at_label, logits), axis=-1, keepdims=True)
    # Counts smaller logits, so that NaN is never among the largest.
    below = (logits < score) | (tf.equal(logits, score) & (indices >= labels[..., tf.newaxis]))
    rank = tf.reduce_sum(tf.cast(~below, tf.int32), axis=-1)
    return _where_in_range(rank < k, labels, logits)


def _where_in_range(correct: tf.Tensor, labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
    in_range = (labels >= 0) & (labels < tf.shape(logits, labels.dtype)[-1])
    return tf.where(in_range, tf.cast(correct, tf.float32), nan(tf.float32))


class PrecisionRecall(NamedTuple):
    """Precision and recall of a detector (van Rijsbergen, 1979)."""

    true_positives: tf.Tensor
    false_positives: tf.Tensor
    false_negatives: tf.Tensor

    @classmethod
    def of(cls, scores: Any, labels: Any, weight: Any = None, *, threshold: float = 0.5) -> "PrecisionRecall":
        """Counts scores of at least `threshold` as positive; labels are 0 or 1. For logits, use `threshold=0.0`."""
        scores = arguments.floats("scores", scores)
        weights, labels, valid = binary_labels(scores, labels, weight)
        found, there = scores >= threshold, tf.equal(labels, 1)
        sums = (weighted_sum(x, weights) for x in (found & there, found & ~there, ~found & there))
        return cls(*(poisoned(x, (valid & ~tf.math.is_nan(scores)) | tf.equal(weights, 0.0)) for x in sums))

    def result(self) -> dict[str, tf.Tensor]:
        """Returns precision, recall and F1, the harmonic mean of both, by name."""
        found, there = self.true_positives + self.false_positives, self.true_positives + self.false_negatives
        return {
            "precision": ratio(self.true_positives, found),
            "recall": ratio(self.true_positives, there),
            "f1": ratio(2.0 * self.true_positives, found + there),
        }


class Confusion(NamedTuple):
    """The confusion matrix: counts of each true class (row) that was predicted as each class (column)."""

    counts: tf.Tensor  # [classes, classes]

    @classmethod
    def of(cls, predictions: Any, labels: Any, num_classes: int, weight: Any = None) -> "Confusion":
        """Counts pairs of class indices, such as those of pixels. For logits, pass `predicted(logits)`."""
        return cls(confusion_counts(predictions, labels, num_classes, weight))

    def result(self) -> dict[str, tf.Tensor]:
        """Returns accuracy, and the means of precision, recall and F1 over the classes in labels or predictions."""
        right, predicted, labelled = margins(self.counts)
        return {
            "accuracy": ratio(tf.reduce_sum(right), tf.reduce_sum(self.counts)),
            "precision": class_average(right, predicted, self.counts),
            "recall": class_average(right, labelled, self.counts),
            "f1": class_average(2.0 * right, predicted + labelled, self.counts),
        }


class IoU(NamedTuple):
    """Intersection over union of prediction and label (Jaccard, 1912), averaged over the classes that occur."""

    counts: tf.Tensor  # [classes, classes], as in `Confusion`

    @classmethod
    def of(cls, predictions: Any, labels: Any, num_classes: int, weight: Any = None) -> "IoU":
        """Counts pairs of class indices, such as those of pixels. For logits, pass `predicted(logits)`."""
        return cls(confusion_counts(predictions, labels, num_classes, weight))

    def result(self) -> tf.Tensor:
        """Returns the mean over classes of |prediction ∩ label| / |prediction ∪ label|."""
        right, predicted, labelled = margins(self.counts)
        return class_average(right, predicted + labelled - right, self.counts)


def confusion_counts(predictions: Any, labels: Any, num_classes: int, weight: Any) -> tf.Tensor:
    """Returns the total weight of each (label, prediction), [classes, classes]. An index out of range gives `nan`."""
    if num_classes < 1:
        raise ValueError(f"`num_classes` is {num_classes}; it is at least 1.")
    predictions = tf.cast(arguments.integers("predictions", predictions), tf.int64)
    labels = tf.cast(arguments.integers("labels", labels), tf.int64)
    labels = arguments.shaped_like("labels", labels, "predictions", predictions)
    weights = weights_of(predictions, "predictions", weight)
    valid = (tf.minimum(predictions, labels) >= 0) & (tf.maximum(predictions, labels) < num_classes)
    pairs = zero_where(~valid, labels * num_classes + predictions)
    counts = tf.math.unsorted_segment_sum(weights, pairs, num_classes**2)
    return poisoned(tf.reshape(counts, [num_classes, num_classes]), valid | tf.equal(weights, 0.0))


def margins(counts: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Returns the diagonal of `counts`, its column sums (predictions) and its row sums (labels), each [classes]."""
    return tf.linalg.diag_part(counts), tf.reduce_sum(counts, axis=0), tf.reduce_sum(counts, axis=1)


def class_average(numerators: tf.Tensor, denominators: tf.Tensor, counts: tf.Tensor) -> tf.Tensor:
    """Returns the mean of `numerators / denominators` over the classes that occur in `counts`. 0/0 counts as zero."""
    _, predicted, labelled = margins(counts)
    occurs = tf.cast(tf.not_equal(predicted + labelled, 0.0), counts.dtype)
    ratios = tf.math.divide_no_nan(numerators, denominators)
    return ratio(tf.reduce_sum(occurs * ratios), tf.reduce_sum(occurs))


def binary_labels(scores: tf.Tensor, labels: Any, weight: Any) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Returns float64 weights, integer labels, and a mask of the labels 0 and 1, each in the shape of `scores`."""
    labels = tf.convert_to_tensor(labels)
    labels = arguments.integers("labels", tf.cast(labels, tf.int32) if labels.dtype.is_bool else labels)
    labels = arguments.shaped_like("labels", labels, "scores", scores)
    return weights_of(scores, "scores", weight), labels, tf.equal(labels, 0) | tf.equal(labels, 1)
