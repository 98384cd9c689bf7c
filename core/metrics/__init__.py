"""Metrics that a step function reports with its loss, in `Loss.metrics`. There are two kinds.

*Per-example tensors* have the shape of the loss and its weights; the engine reports Σ weight · x / Σ weight:

    >>> from core import metrics
    >>> print(metrics.accuracy([[2.0, 0.0], [0.0, 3.0]], [0, 0]).numpy())
    [1. 0.]

*Additive states* are for metrics that aren't means of examples. A state is a named tuple of sums (`metrics.State`). The
engine adds states field by field over microbatches, replicas and steps, and calls `result` for each metric line:

    >>> first = metrics.RMSE.of([3.0, 1.0], [0.0, 1.0])
    >>> second = metrics.RMSE.of([9.0, 9.0], [1.0, 7.0], weight=[0.0, 1.0])
    >>> round(float(metrics.merge(first, second).result()), 4)  # √((9 + 0 + 4) / 3)
    2.0817

The sums are float64, so integer weights add up exactly in any order. A metric is `nan` if it has no measurements, or
if an input is invalid, such as a label out of range. A custom state is a `NamedTuple` of tensors that can be added,
with a method `result() -> scalar | {suffix: scalar}`.
"""

from core.metrics.classification import Confusion, IoU, PrecisionRecall, accuracy, predicted, top_k_accuracy
from core.metrics.frechet import Frechet
from core.metrics.generation import ClassCoverage, CodeUsage, in_manifold
from core.metrics.images import psnr, ssim
from core.metrics.kernel import kernel_distance
from core.metrics.ranking import AUC
from core.metrics.regression import MAE, R2, RMSE
from core.metrics.state import BitsPerByte, Figures, Mean, Perplexity, State, merge

__all__ = [
    "AUC",
    "MAE",
    "R2",
    "RMSE",
    "BitsPerByte",
    "ClassCoverage",
    "CodeUsage",
    "Confusion",
    "Figures",
    "Frechet",
    "IoU",
    "Mean",
    "Perplexity",
    "PrecisionRecall",
    "State",
    "accuracy",
    "in_manifold",
    "kernel_distance",
    "merge",
    "predicted",
    "psnr",
    "ssim",
    "top_k_accuracy",
]
