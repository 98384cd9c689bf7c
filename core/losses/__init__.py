"""Losses per example, without a mean over the batch: the engine weighs them, sums them, and divides once.

    >>> from core import losses
    >>> loss = losses.softmax_cross_entropy([[2.0, 0.0], [0.0, 3.0], [1.0, 1.0]], [0, 1, -1], ignore=-1)
    >>> [round(float(x), 4) for x in loss]
    [0.1269, 0.0486, 0.0]
    >>> [float(x) for x in losses.label_weights([0, 1, -1], ignore=-1, class_weights=[1.0, 3.0])]
    [1.0, 3.0, 0.0]

Each loss is computed in float32 for every floating input (float64 stays float64), and checks its arguments while
tracing. A mistake that shows only at run time, such as a label out of range, raises an error or gives `nan`.
"""

from core.losses.cross_entropy import kl_divergence, label_weights, sigmoid_cross_entropy, softmax_cross_entropy
from core.losses.embedding import cosine_distance, info_nce, nt_xent, triplet
from core.losses.margin import focal, hinge
from core.losses.regression import absolute_error, huber, log_cosh, squared_error
from core.losses.segmentation import dice
from core.losses.sequence import ctc

__all__ = [
    "absolute_error",
    "cosine_distance",
    "ctc",
    "dice",
    "focal",
    "hinge",
    "huber",
    "info_nce",
    "kl_divergence",
    "label_weights",
    "log_cosh",
    "nt_xent",
    "sigmoid_cross_entropy",
    "softmax_cross_entropy",
    "squared_error",
    "triplet",
]
