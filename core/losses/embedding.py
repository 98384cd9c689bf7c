"""Losses that compare vectors: cosine distance, triplets, and contrast within a batch."""

from typing import Any

import tensorflow as tf

from core import arguments
from core.losses.labels import zero_where


def cosine_distance(predictions: Any, targets: Any) -> tf.Tensor:
    """Returns 1 − cos of the angle of vectors [..., size]; a vector of zeros is at distance 1, without gradient."""
    predictions = arguments.floats("predictions", predictions, min_rank=1, axes="[..., size]")
    targets = arguments.targets_like("targets", targets, "predictions", predictions)
    return 1.0 - tf.reduce_sum(_unit(predictions) * _unit(targets), axis=-1)


def triplet(anchors: Any, positives: Any, negatives: Any, *, margin: float = 0.2) -> tf.Tensor:
    """Returns max(0, |a − p|² − |a − n|² + margin), for vectors [..., size] (Schroff et al., 2015).

    The paper's vectors have length one: `tf.math.l2_normalize(x, axis=-1)`.
    """
    arguments.check_not_negative(margin=margin)
    anchors = arguments.floats("anchors", anchors, min_rank=1, axes="[..., size]")
    positives = arguments.targets_like("positives", positives, "anchors", anchors)
    negatives = arguments.targets_like("negatives", negatives, "anchors", anchors)
    to_positive = tf.reduce_sum(tf.square(anchors - positives), axis=-1)
    to_negative = tf.reduce_sum(tf.square(anchors - negatives), axis=-1)
    return tf.nn.relu(to_positive - to_negative + margin)


def info_nce(queries: Any, keys: Any, *, temperature: float = 0.1, mask: Any = None) -> tf.Tensor:
    """Returns −log softmax_j(cos(query_i, key_j) / τ) at j = i: a query finds its own key (van den Oord et al., 2018).

    `queries` and `keys` are [batch, size]; the other keys of the batch are the negatives, so a phase with this loss
    says `mixes_rows=True`. Rows where `mask` [batch] is false (padding) are nobody's negatives; they give zero and no
    gradient, and want a weight of zero.
    """
    arguments.check_positive(temperature=temperature)
    queries = arguments.floats("queries", queries)
    if queries.shape.rank not in (2, None):
        raise ValueError(f"`queries` has shape {queries.shape}; it needs the axes [batch, size]: `tf.reshape` it.")
    keys = arguments.targets_like("keys", keys, "queries", queries)
    absent = None
    if mask is not None:
        mask = arguments.shaped_like("mask", tf.cast(mask, tf.bool), "queries", queries, leading=1)
        absent = ~mask
        queries, keys = (zero_where(absent[:, tf.newaxis], x) for x in (queries, keys))
    logits = tf.matmul(_unit(queries), _unit(keys), transpose_b=True) / temperature
    if absent is not None:
        logits = tf.where(mask, logits, logits.dtype.min)
    loss = -tf.linalg.diag_part(tf.nn.log_softmax(logits))
    return zero_where(absent, loss)


def _unit(x: tf.Tensor) -> tf.Tensor:
    """Returns `x` [..., size] at length one, or zero where it is zero."""
    # The direction doesn't depend on the scale, which may be a constant therefore; without it squares overflow.
    scale = tf.stop_gradient(tf.reduce_max(tf.abs(x), axis=-1, keepdims=True))
    zero = tf.equal(scale, 0.0)
    x = tf.where(zero, tf.ones_like(x), x) / tf.where(zero, tf.ones_like(scale), scale)
    return zero_where(zero, x * tf.math.rsqrt(tf.reduce_sum(tf.square(x), axis=-1, keepdims=True)))
