"""Augmentation that mixes an image and its label with those of a partner, another row of the whole (micro)batch.

The partners are drawn from the rows of all replicas. So a task that mixes has `mixes_rows=True`, and its images are
gathered once a step.
"""

import gin
import tensorflow as tf

from core.arguments import check_positive
from core.random import Rng
from core.rows import all_rows, own_rows

HALVINGS = 24  # of the interval that holds a quantile: all digits of float32


@gin.configurable
def mixup(images: tf.Tensor, labels: tf.Tensor, rng: Rng, *, alpha: float = 0.2) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns λ x + (1 − λ) x' of images x and of labels [rows, classes], with partners x' (Zhang et al., 2018).

    λ has the distribution Beta(`alpha`, `alpha`). Each row draws its own; the paper draws one for each batch.
    """
    check_positive(alpha=alpha)
    others, other_labels, unit = _partners(images, labels, rng)
    share = _beta(unit, alpha)
    return _blend(images, others, share[:, None, None, None]), _blend(labels, other_labels, share[:, None])


@gin.configurable
def cutmix(images: tf.Tensor, labels: tf.Tensor, rng: Rng, *, alpha: float = 1.0) -> tuple[tf.Tensor, tf.Tensor]:
    """Fills a rectangle of each image with its partner's pixels (Yun et al., 2019).

    The rectangle has the image's shape and the share 1 − λ of its area, with λ of Beta(`alpha`, `alpha`). Its centre is
    anywhere, and parts outside the image are cut. Labels [rows, classes] are mixed by the pixels that remain.
    """
    check_positive(alpha=alpha)
    others, other_labels, unit = _partners(images, labels, rng)
    _, height, width, _ = images.shape
    side = tf.sqrt(1.0 - _beta(unit, alpha))
    y, x = tf.unstack(rng.fold("centre").wide.rows.uniform(images.shape[0] or tf.shape(images)[0], 2), axis=1)
    inside = tf.expand_dims(_near(y, side, height), 2) & tf.expand_dims(_near(x, side, width), 1)
    kept = 1.0 - tf.reduce_mean(tf.cast(inside, tf.float32), [1, 2])
    return tf.where(inside[..., None], others, images), _blend(labels, other_labels, kept[:, None])


def _partners(images: tf.Tensor, labels: tf.Tensor, rng: Rng) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Returns the images and labels of the rows' partners, and a uniform number for each row.

    The rows of all replicas stand in a circle, in random order. A row's partner is the next one.
    """
    place, unit = tf.unstack(rng.wide.rows.uniform(images.shape[0] or tf.shape(images)[0], 2), axis=1)
    order = tf.argsort(all_rows(place))
    following = tf.gather(order, (tf.argsort(order) + 1) % tf.size(order))
    mine = own_rows(following)
    return tf.gather(all_rows(images), mine), tf.gather(all_rows(labels), mine), unit


def _beta(unit: tf.Tensor, alpha: float) -> tf.Tensor:
    """Returns the quantiles `unit` of Beta(`alpha`, `alpha`)."""
    if alpha == 1.0:
        return unit
    low, high = tf.zeros_like(unit), tf.ones_like(unit)
    for _ in range(HALVINGS):
        middle = 0.5 * (low + high)
        below = tf.math.betainc(alpha, alpha, middle) < unit
        low, high = tf.where(below, middle, low), tf.where(below, high, middle)
    return 0.5 * (low + high)


def _near(centre: tf.Tensor, side: tf.Tensor, size: int) -> tf.Tensor:
    """Returns which of `size` places are at most half of `side` from `centre`, both shares of `size`: [rows, size]."""
    places = (tf.range(float(size)) + 0.5) / size
    return tf.abs(places - centre[:, None]) < 0.5 * side[:, None]


def _blend(values: tf.Tensor, others: tf.Tensor, share: tf.Tensor) -> tf.Tensor:
    wide = share * tf.cast(values, tf.float32) + (1.0 - share) * tf.cast(others, tf.float32)
    return tf.cast(wide, values.dtype)
