"""Losses that compare vectors: cosine distance, triplets, and contrastive losses within a batch."""

from typing import Any

import tensorflow as tf

from core import arguments
from core.choice import zero_where
from core.losses.labels import held_unless_finite
from core.rows import all_rows, own_rows


def cosine_distance(predictions: Any, targets: Any) -> tf.Tensor:
    """Returns 1 − cos(prediction, target) for vectors [..., size]. A zero vector gives 1 and no gradient."""
    predictions = arguments.floats("predictions", predictions, min_rank=1, axes="[..., size]")
    targets = arguments.targets_like("targets", targets, "predictions", predictions)
    predictions, targets = held_unless_finite(predictions, targets)
    return 1.0 - tf.reduce_sum(_unit(predictions) * _unit(targets), axis=-1)


def triplet(anchors: Any, positives: Any, negatives: Any, *, margin: float = 0.2) -> tf.Tensor:
    """Returns max(0, |a − p|² − |a − n|² + margin) for vectors [..., size] (Schroff et al., 2015).

    The paper's vectors have length one: use `tf.math.l2_normalize(x, axis=-1)`. PyTorch's distances aren't squared.
    """
    arguments.check_not_negative(margin=margin)
    anchors = arguments.floats("anchors", anchors, min_rank=1, axes="[..., size]")
    positives = arguments.targets_like("positives", positives, "anchors", anchors)
    negatives = arguments.targets_like("negatives", negatives, "anchors", anchors)
    anchors, positives, negatives = held_unless_finite(anchors, positives, negatives)
    to_positive = tf.reduce_sum(tf.square(anchors - positives), axis=-1)
    to_negative = tf.reduce_sum(tf.square(anchors - negatives), axis=-1)
    return tf.nn.relu(to_positive - to_negative + margin)


def info_nce(queries: Any, keys: Any, *, temperature: float = 0.1, mask: Any = None) -> tf.Tensor:
    """Returns −log softmax_j(cos(query_i, key_j) / τ) at j = i (van den Oord et al., 2018).

    `queries` and `keys` are [batch, size]. The negatives of a query are all other keys of the microbatch on all
    replicas (`core.task.all_rows`). So a phase with this loss needs `mixes_rows=True`. `mask` [batch] is false for
    padding: such rows aren't negatives, and their loss is zero without a gradient. Give them a weight of zero.
    """
    arguments.check_positive(temperature=temperature)
    queries, keys, mask, absent = _units(mask, queries=queries, keys=keys)
    logits = tf.matmul(queries, all_rows(keys), transpose_b=True) / temperature
    if mask is not None:
        logits = tf.where(all_rows(mask), logits, logits.dtype.min)
    own = _places(logits)
    loss = -tf.reduce_sum(zero_where(~own, tf.nn.log_softmax(logits)), axis=-1)
    return zero_where(absent, loss)


def nt_xent(one: Any, other: Any, *, temperature: float = 0.5, mask: Any = None) -> tf.Tensor:
    """Returns the loss of identifying two views of an example among all views (SimCLR: Chen et al., 2020).

    `one` and `other` are [batch, size]. Each view of a row is a query, and the row's other view is its key, as in
    `info_nce`. The negatives are both views of all other rows. A row's loss is the mean over its two views.
    """
    arguments.check_positive(temperature=temperature)
    one, other, mask, absent = _units(mask, one=one, other=other)
    views = all_rows(tf.stack([one, other], axis=1))
    ones, others = tf.unstack(views, num=2, axis=1)
    own = _places(tf.matmul(one, ones, transpose_b=True))
    taken = own if mask is None else own | ~all_rows(mask)
    losses = []
    for query, same_views, other_views in ((one, ones, others), (other, others, ones)):
        # A view's cosine with itself is one; it is neither key nor negative.
        same, cross = (tf.matmul(query, x, transpose_b=True) / temperature for x in (same_views, other_views))
        same = tf.where(taken, same.dtype.min, same)
        cross = cross if mask is None else tf.where(taken & ~own, cross.dtype.min, cross)
        found = tf.nn.log_softmax(tf.concat([same, cross], axis=-1))[:, tf.shape(same)[1] :]
        losses.append(-tf.reduce_sum(zero_where(~own, found), axis=-1))
    return zero_where(absent, 0.5 * (losses[0] + losses[1]))


def _units(mask: Any, **vectors: Any) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor | None, tf.Tensor | None]:
    """Scales the two batches of `vectors` to unit length. Returns them, `mask` as booleans, and `~mask`."""
    (name, x), (other_name, y) = vectors.items()
    x = arguments.floats(name, x)
    if x.shape.rank not in (2, None):
        raise ValueError(f"`{name}` has shape {x.shape}; it needs the axes [batch, size]: `tf.reshape` it.")
    y = arguments.targets_like(other_name, y, name, x)
    if mask is None:
        return _unit(x), _unit(y), None, None
    mask = arguments.shaped_like("mask", tf.cast(mask, tf.bool), name, x, leading=1)
    absent = ~mask
    x, y = (_unit(zero_where(absent[:, tf.newaxis], z)) for z in (x, y))
    return x, y, mask, absent


def _places(logits: tf.Tensor) -> tf.Tensor:
    """Returns booleans [rows, all rows], true where a row of this replica is compared with itself."""
    places = tf.range(tf.shape(logits)[1])
    return own_rows(places)[:, tf.newaxis] == places


def _unit(x: tf.Tensor) -> tf.Tensor:
    """Returns `x` [..., size] divided by its length. Zero vectors stay zero."""
    # The direction doesn't depend on the scale, so the scale may be a constant; without it squares overflow.
    scale = tf.stop_gradient(tf.reduce_max(tf.abs(x), axis=-1, keepdims=True))
    zero = tf.equal(scale, 0.0)
    x = tf.where(zero, tf.ones_like(x), x) / tf.where(zero, tf.ones_like(scale), scale)
    return zero_where(zero, x * tf.math.rsqrt(tf.reduce_sum(tf.square(x), axis=-1, keepdims=True)))
