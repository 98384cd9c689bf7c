"""Softmax and sigmoid cross-entropy, Kullback-Leibler divergence, and label weights."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from core import arguments
from core.choice import nan, zero_where
from core.losses.labels import binary, held_where, share_of


def softmax_cross_entropy(
    logits: Any, labels: Any, *, label_smoothing: float = 0.0, ignore: int | None = None, z_loss: float = 0.0
) -> tf.Tensor:
    """Returns −Σ labels · log softmax(logits) over the last axis of logits [..., classes]: one value per row.

    `labels` are class indices [...] (integers) or distributions [..., classes] (floats). `label_smoothing` s moves a
    share s of each label to the uniform distribution (Szegedy et al., 2016). `z_loss` is the weight of an added term
    (log Σ exp logits)², which keeps the logits near zero (Chowdhery et al., 2022). A label equal to `ignore` gives zero
    and no gradient. Pass `label_weights` as weights to exclude ignored labels from the mean.

    An index out of range raises an error, or gives `nan` on devices that can't raise errors.
    """
    logits = arguments.floats("logits", logits, min_rank=1, axes="[..., classes]")
    arguments.check_fraction(label_smoothing=label_smoothing)
    arguments.check_not_negative(z_loss=z_loss)
    labels = tf.convert_to_tensor(labels)
    ranks = (labels.shape.rank, logits.shape.rank)
    if labels.dtype.is_integer or (None not in ranks and ranks[0] == ranks[1] - 1):
        labels = arguments.class_indices("labels", labels, "logits", logits)
        ignored = None if ignore is None else tf.equal(labels, tf.cast(ignore, labels.dtype))
        labels = zero_where(ignored, labels)
        # A zero gradient times a non-finite logit would still be `nan`, so the logits are replaced too.
        logits = zero_where(None if ignored is None else ignored[..., tf.newaxis], logits)
        loss = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
        if label_smoothing:
            uniform = -tf.reduce_mean(tf.nn.log_softmax(logits), axis=-1)
            loss = (1.0 - label_smoothing) * loss + label_smoothing * uniform
    else:
        if ignore is not None:
            raise ValueError(f"`ignore` is {ignore}, but `labels` are distributions: give such rows a weight of zero.")
        ignored = None
        labels = arguments.targets_like("labels", labels, "logits", logits)
        if label_smoothing:
            classes = tf.cast(tf.shape(logits)[-1], logits.dtype)
            labels = (1.0 - label_smoothing) * labels + label_smoothing / classes
        finite = tf.reduce_all(tf.math.is_finite(labels), axis=-1, keepdims=True)
        labels, logits = held_where(~finite, labels), held_where(~finite, logits)
        # The gradient of TensorFlow's fused op assumes labels that sum to one; this one is right for any. A class that
        # a logit of minus infinity rules out costs nothing if its label is zero.
        loss = -tf.reduce_sum(share_of(tf.nn.log_softmax(logits), labels), axis=-1)
    if z_loss:
        loss += z_loss * tf.square(tf.reduce_logsumexp(logits, axis=-1))
    return zero_where(ignored, loss)


def sigmoid_cross_entropy(
    logits: Any, labels: Any, *, label_smoothing: float = 0.0, ignore: int | None = None
) -> tf.Tensor:
    """Returns −labels · log σ(logits) − (1 − labels) · log(1 − σ(logits)): one value per logit.

    `labels` are 0 or 1, or probabilities; a label outside [0, 1] gives `nan`. `label_smoothing` s changes labels to
    (1 − s) · labels + s/2. A label equal to `ignore` gives zero and no gradient.
    """
    arguments.check_fraction(label_smoothing=label_smoothing)
    logits, labels, ignored = binary(logits, labels, ignore, soft=True)
    if label_smoothing:
        labels = (1.0 - label_smoothing) * labels + 0.5 * label_smoothing
    # Each half is zero if its share is zero, also for an infinite logit, where TensorFlow's own loss is `nan`.
    positive = share_of(tf.math.softplus(-logits), labels)
    negative = share_of(tf.math.softplus(logits), 1.0 - labels)
    return zero_where(ignored, positive + negative)


def kl_divergence(logits: Any, targets: Any) -> tf.Tensor:
    """Returns Σ targets · (log targets − log softmax(logits)) over [..., classes] (Kullback and Leibler, 1951).

    `logits` may be log-probabilities. For distillation, `targets` are `tf.nn.softmax(teacher_logits)`.
    """
    logits = arguments.floats("logits", logits, min_rank=1, axes="[..., classes]")
    targets = arguments.targets_like("targets", targets, "logits", logits)
    finite = tf.reduce_all(tf.math.is_finite(targets), axis=-1, keepdims=True)
    targets, logits = held_where(~finite, targets), held_where(~finite, logits)
    cross = share_of(tf.nn.log_softmax(logits), targets)
    return tf.reduce_sum(tf.math.xlogy(targets, targets) - cross, axis=-1)


def label_weights(labels: Any, *, ignore: int | None = None, class_weights: Sequence[float] | None = None) -> tf.Tensor:
    """Returns the weight of each label: the weight of its class, or zero for an ignored label.

    Pass the result as `Loss.weight`, with the loss of the same labels. The mean then divides by the sum of weights:

        Loss(losses.softmax_cross_entropy(logits, labels, ignore=-1), weight=losses.label_weights(labels, ignore=-1))

    The weight multiplies the whole loss of a row, smoothing included. PyTorch weighs each smoothed share separately.

    For sigmoid losses, `class_weights` are `[weight of label 0, weight of label 1]`. A label without a class weight
    gets the weight `nan`.
    """
    labels = arguments.integers("labels", labels)
    weights = tf.ones_like(labels, tf.float32)
    if class_weights is not None:
        table = tf.convert_to_tensor(class_weights, tf.float32)
        if table.shape.rank not in (1, None):
            raise ValueError(f"`class_weights` has shape {table.shape}; give one weight per class: [classes].")
        classes = tf.shape(table, labels.dtype)[0]
        in_range = (labels >= 0) & (labels < classes)
        # Out of range, `gather` raises, gives zero or the nearest row, depending on the device.
        weights = tf.where(in_range, tf.gather(table, zero_where(~in_range, labels)), nan(tf.float32))
    return weights if ignore is None else zero_where(tf.equal(labels, tf.cast(ignore, labels.dtype)), weights)
