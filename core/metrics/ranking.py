"""The areas under the ROC and the precision-recall curve."""

from typing import Any, NamedTuple

import tensorflow as tf

from core import arguments
from core.choice import zero_where
from core.metrics.classification import binary_labels
from core.metrics.state import poisoned, ratio


class AUC(NamedTuple):
    """Areas under the ROC curve (Hanley and McNeil, 1982) and the precision-recall curve (Davis and Goadrich, 2006).

    Scores are counted in equal bins of [0, 1], so that states can be added. The metrics are exact for scores rounded to
    their bins: the order within a bin is lost. The ROC area is off by at most Σ p_b n_b / 2, where p_b and n_b are the
    shares of all positives and all negatives in bin b. `error_bounds` computes this bound. It is zero if no bin holds
    both kinds, and at most M / (2 · bins) if the scores of one kind have a density below M.
    """

    positives: tf.Tensor  # [bins], the weight of the positives with such scores
    negatives: tf.Tensor  # [bins]

    @classmethod
    def of(cls, scores: Any, labels: Any, weight: Any = None, *, bins: int = 1000) -> "AUC":
        """Counts scores in [0, 1], such as `tf.sigmoid(logits)`, with labels 0 or 1. Other scores give `nan`."""
        if bins < 2:
            raise ValueError(f"`bins` is {bins}; the error shrinks with 1 / bins: use a few hundred.")
        scores = arguments.floats("scores", scores)
        weights, labels, valid = binary_labels(scores, labels, weight)
        valid &= (scores >= 0.0) & (scores <= 1.0)
        # A score of 1 belongs to the last bin; an invalid one may be in any.
        index = tf.minimum(tf.cast(zero_where(~valid, scores) * bins, tf.int32), bins - 1)
        sums = (
            tf.math.unsorted_segment_sum(zero_where(tf.not_equal(labels, kind), weights), index, bins)
            for kind in (1, 0)
        )
        return cls(*(poisoned(x, valid | tf.equal(weights, 0.0)) for x in sums))

    def result(self) -> dict[str, tf.Tensor]:
        """Returns `{"roc": ..., "pr": ...}`: the areas under the ROC and the precision-recall curve."""
        curve = self._curve()
        wins = tf.reduce_sum(curve.p * (tf.reduce_sum(curve.n) - curve.n_above - 0.5 * curve.n))
        precision = tf.math.divide_no_nan(curve.p_above + curve.p, curve.p_above + curve.p + curve.n_above + curve.n)
        total = tf.reduce_sum(curve.p)
        return {
            "roc": ratio(wins, total * tf.reduce_sum(curve.n)),
            "pr": ratio(tf.reduce_sum(curve.p * precision), total),
        }

    def error_bounds(self) -> dict[str, tf.Tensor]:
        """Returns the largest possible error from binning of each metric, by the names of `result`."""
        p, n, p_above, n_above = self._curve()
        total = tf.reduce_sum(p)
        binned = tf.math.divide_no_nan(p_above + p, p_above + p + n_above + n)
        # At best all positives of a bin come before its negatives, at worst after them.
        best = tf.math.divide_no_nan(p_above + p, p_above + p + n_above)
        worst = tf.math.divide_no_nan(p_above, p_above + n_above + n)
        # Before the first negative every precision is one.
        off = zero_where(tf.equal(n + n_above, 0.0), tf.maximum(best - binned, binned - worst))
        return {
            "roc": ratio(0.5 * tf.reduce_sum(p * n), total * tf.reduce_sum(n)),
            "pr": ratio(tf.reduce_sum(p * off), total),
        }

    def _curve(self) -> "_Curve":
        p, n = (tf.reverse(tf.cast(x, tf.float64), [0]) for x in self)
        return _Curve(p, n, tf.cumsum(p, exclusive=True), tf.cumsum(n, exclusive=True))


class _Curve(NamedTuple):
    """Positives `p` and negatives `n` per bin, highest score first. `_above` counts all bins with higher scores."""

    p: tf.Tensor
    n: tf.Tensor
    p_above: tf.Tensor
    n_above: tf.Tensor
