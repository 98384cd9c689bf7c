"""Losses of binary classifiers that depend on the margin: focal and hinge."""

from typing import Any

import tensorflow as tf

from core import arguments
from core.choice import zero_where
from core.losses.labels import binary, share_of


def focal(
    logits: Any, labels: Any, *, gamma: float = 2.0, alpha: float | None = None, ignore: int | None = None
) -> tf.Tensor:
    """Returns −α_t (1 − p_t)^γ log p_t per logit, where p_t is the label's probability (Lin et al., 2017).

    The factor (1 − p_t)^γ lowers the loss of confident right answers. α_t is `alpha` for label 1, and 1 − `alpha` for
    label 0. The label `ignore` gives zero and no gradient; any other label gives `nan`.
    """
    arguments.check_not_negative(gamma=gamma)
    if alpha is not None and not 0.0 <= alpha <= 1.0:
        raise ValueError(f"`alpha` is {alpha}; it is the share of the positives, in [0, 1].")
    logits, labels, ignored = binary(logits, labels, ignore)
    score = (2.0 * labels - 1.0) * logits  # p_t = σ(score)
    # Both factors are computed from logarithms, so that neither they nor their gradients overflow.
    loss = tf.math.softplus(-score)
    if gamma:
        loss *= tf.exp(gamma * tf.math.log_sigmoid(-score))
    if alpha is not None:
        loss = share_of(loss, alpha * labels + (1.0 - alpha) * (1.0 - labels))
    return zero_where(ignored, loss)


def hinge(logits: Any, labels: Any, *, ignore: int | None = None) -> tf.Tensor:
    """Returns max(0, 1 − y · logits), with y = −1 for label 0 and y = +1 for label 1 (Cortes and Vapnik, 1995).

    Returns one value per logit. The label `ignore` gives zero and no gradient; any other label gives `nan`.
    """
    logits, labels, ignored = binary(logits, labels, ignore)
    return zero_where(ignored, tf.nn.relu(1.0 - (2.0 * labels - 1.0) * logits))
