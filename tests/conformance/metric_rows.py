"""Rows of the public metrics, one each; the table makes this file long."""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import scipy
import tensorflow as tf

from core import metrics

from .battery import Arrays, Row

Generator = np.random.Generator


@dataclasses.dataclass(frozen=True)
class MetricRow(Row):
    """A metric; a state's last input is the weight of each value."""

    state: bool = True
    garbage: tuple[Any, ...] = ()  # values that each input may have where its weight is zero


def figures(part: Any, *inputs: Any) -> Any:
    """Returns the reported values: a state's results, or a tensor's values."""
    value = part(*inputs)
    return value.result() if isinstance(value, metrics.State) else value


def scored(rng: Generator, rows: int) -> Arrays:
    labels = rng.integers(0, 2, rows)
    # Between the edges of a thousand bins, where rounding to bins keeps the order; ties included.
    return ((rng.integers(0, 50, rows) + 15 * labels) / 100 + 0.005).astype(np.float32), labels


def ranked(rng: Generator, rows: int) -> Arrays:
    # Few distinct logits, so that some are equal.
    return rng.integers(0, 6, (rows, 5)).astype(np.float32), rng.integers(0, 5, rows)


def classes(rng: Generator, rows: int) -> Arrays:
    return rng.integers(0, 4, (rows, 3)), rng.integers(0, 3, (rows, 3))


def numbers(rng: Generator, rows: int) -> Arrays:
    targets = 3 + rng.normal(size=(rows, 2))
    return (targets + 0.5 * rng.normal(size=(rows, 2))).astype(np.float32), targets.astype(np.float32)


def values(rng: Generator, rows: int) -> Arrays:
    return numbers(rng, rows)[:1]


def told(rng: Generator, rows: int) -> Arrays:
    """Returns the cost of each token and its number of bytes, zero for some."""
    return (*values(rng, rows), rng.integers(0, 5, (rows, 2)))


def pictures(rng: Generator, rows: int) -> Arrays:
    targets = 255 * rng.random((rows, 14, 13, 2))
    return np.clip(targets + 20 * rng.normal(size=targets.shape), 0, 255).astype(np.float32), targets.astype(np.float32)


def points(rng: Generator, rows: int) -> Arrays:
    """Returns two sets of points, one coordinate each: multiples of 1/16, whose products have exact sums."""
    return tuple((rng.integers(-40, 40, rows) / 16 + (i == 0)).astype(np.float32) for i in range(6))


def plane(rng: Generator, rows: int) -> Arrays:
    return (rng.normal(size=(rows, 2)).astype(np.float32),)


PLANE = plane(np.random.default_rng(9), 12)[0]


def frechet(*arrays: np.ndarray) -> float:
    """Uses the eigenvalues of the matrix product, whose root exists even if it is singular."""
    *coordinates, w = arrays
    sets = coordinates[:3], coordinates[3:]
    mean_1, mean_2 = (np.average(x, axis=1, weights=w) for x in sets)
    cov_1, cov_2 = (np.cov(x, fweights=(4 * w).astype(int)) for x in sets)
    roots = np.sqrt(np.linalg.eigvals(cov_1 @ cov_2).astype(complex)).real
    return float(((mean_1 - mean_2) ** 2).sum() + np.trace(cov_1 + cov_2) - 2 * roots.sum())


def in_balls(features: np.ndarray) -> np.ndarray:
    """Counts ball by ball, as the paper does."""
    inside = np.zeros(len(features), np.float32)
    for i, centre in enumerate(PLANE.astype(np.float64)):
        others = np.linalg.norm(np.delete(PLANE, i, axis=0) - centre, axis=1)
        inside[np.linalg.norm(features - centre, axis=1) <= np.sort(others)[2]] = 1
    return inside


def perplexity(codes: np.ndarray, _: np.ndarray, w: np.ndarray) -> float:
    return float(np.exp(scipy.stats.entropy([w[codes == code].sum() for code in range(5)])))


def pairwise_auc(scores: np.ndarray, labels: np.ndarray, w: np.ndarray) -> float:
    """Returns the share of pairs in which the positive scores higher; a tie is half a win."""
    p, n = labels == 1, labels == 0
    wins = (scores[p][:, None] > scores[n]) + 0.5 * (scores[p][:, None] == scores[n])
    return float((w[p][:, None] * w[n] * wins).sum() / (w[p].sum() * w[n].sum()))


def average_precision(scores: np.ndarray, labels: np.ndarray, w: np.ndarray) -> float:
    """Returns the mean, over the positives, of the precision among all that score at least as high."""
    precision = [(w * labels)[scores >= s].sum() / w[scores >= s].sum() for s in scores]
    return float((w * labels * precision).sum() / (w * labels).sum())


def counted(scores: np.ndarray, labels: np.ndarray, w: np.ndarray) -> dict[str, float]:
    found = scores >= 0.3
    tp, fp, fn = (w * found * labels).sum(), (w * found * (1 - labels)).sum(), (w * ~found * labels).sum()
    return {"precision": tp / (tp + fp), "recall": tp / (tp + fn), "f1": tp / (tp + (fp + fn) / 2)}


def by_class(predictions: np.ndarray, labels: np.ndarray, w: np.ndarray) -> dict[str, np.ndarray]:
    both = [c for c in range(5) if (w * ((labels == c) | (predictions == c))).sum() > 0]
    tp = np.array([(w * ((labels == c) & (predictions == c))).sum() for c in both])
    there, found = (np.array([(w * (x == c)).sum() for c in both]) for x in (labels, predictions))
    return {"tp": tp, "there": there, "found": found}


def averages(predictions: np.ndarray, labels: np.ndarray, w: np.ndarray) -> dict[str, float]:
    tp, there, found = by_class(predictions, labels, w).values()
    return {
        "accuracy": float((w * (predictions == labels)).sum() / w.sum()),
        "precision": float(np.mean(tp / np.maximum(found, 1e-9))),
        "recall": float(np.mean(tp / np.maximum(there, 1e-9))),
        "f1": float(np.mean(2 * tp / (there + found))),
    }


def mean_iou(predictions: np.ndarray, labels: np.ndarray, w: np.ndarray) -> float:
    tp, there, found = by_class(predictions, labels, w).values()
    return float(np.mean(tp / (there + found - tp)))


def r2(predictions: np.ndarray, targets: np.ndarray, w: np.ndarray) -> float:
    spread = (w * (targets - np.average(targets, weights=w)) ** 2).sum()
    return float(1 - (w * (predictions - targets) ** 2).sum() / spread)


def decibels(images: np.ndarray, targets: np.ndarray) -> np.ndarray:
    return 20 * np.log10(255) - 10 * np.log10(((images - targets) ** 2).mean((1, 2, 3)))


def similarity(images: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """Computes window by window, as the paper does."""
    line = np.exp(-((np.arange(11) - 5) ** 2) / (2 * 1.5**2))
    window = (np.outer(line, line) / np.outer(line, line).sum())[..., None]
    c1, c2 = (0.01 * 255) ** 2, (0.03 * 255) ** 2
    places = []
    for i in range(images.shape[1] - 10):
        for j in range(images.shape[2] - 10):
            x, y = images[:, i : i + 11, j : j + 11], targets[:, i : i + 11, j : j + 11]
            mx, my = ((window * z).sum((1, 2), keepdims=True) for z in (x, y))
            vx, vy, cov = ((window * z).sum((1, 2)) for z in ((x - mx) ** 2, (y - my) ** 2, (x - mx) * (y - my)))
            mx, my = mx[:, 0, 0], my[:, 0, 0]
            places.append((2 * mx * my + c1) * (2 * cov + c2) / ((mx**2 + my**2 + c1) * (vx + vy + c2)))
    return np.mean(places, axis=(0, 2))


def in_best(logits: np.ndarray, labels: np.ndarray, k: int) -> np.ndarray:
    best = np.argsort(-logits, axis=-1, kind="stable")[:, :k]  # of equals, the first is first
    return (best == labels[:, None]).any(-1).astype(np.float32)


NUMPY = "NumPy, by the definition"

# part, metric, inputs, peer, its name, paper, garbage (for a state)
TABLE: list[tuple[str, Callable[..., Any], Callable[[Generator, int], Arrays], Callable[..., Any], str, str, Any]] = [
    ("accuracy", metrics.accuracy, ranked, partial(in_best, k=1), NUMPY, "", None),
    ("top_k_accuracy", partial(metrics.top_k_accuracy, k=3), ranked, partial(in_best, k=3), NUMPY, "", None),
    ("psnr", partial(metrics.psnr, max_value=255.0), pictures, decibels, NUMPY, "", None),
    ("ssim", partial(metrics.ssim, max_value=255.0), pictures, similarity, "NumPy, window by window",
        "Wang et al., 2004", None),
    ("Mean", metrics.Mean.of, values, lambda x, w: np.average(x, weights=w), "numpy.average", "", (np.nan,)),
    ("Perplexity", metrics.Perplexity.of, values, lambda x, w: np.prod(np.exp(x) ** (w / w.sum())),
        "NumPy, the geometric mean", "Jelinek et al., 1977", (np.inf,)),
    ("BitsPerByte", metrics.BitsPerByte.of, told, lambda x, n, w: (w * np.log2(np.exp(x))).sum() / (w * n).sum(), NUMPY,
        "", (np.nan, -1)),
    ("PrecisionRecall", partial(metrics.PrecisionRecall.of, threshold=0.3), scored, counted, NUMPY,
        "van Rijsbergen, 1979", (np.nan, -1)),
    ("Confusion", lambda p, y, w: metrics.Confusion.of(p, y, 5, w), classes, averages, NUMPY, "", (99, -1)),
    ("IoU", lambda p, y, w: metrics.IoU.of(p, y, 5, w), classes, mean_iou, NUMPY, "Jaccard, 1912", (-5, 255)),
    ("AUC", metrics.AUC.of, scored, lambda s, y, w: {"roc": pairwise_auc(s, y, w), "pr": average_precision(s, y, w)},
        "NumPy, pair by pair", "Hanley and McNeil, 1982", (np.nan, 7)),
    ("MAE", metrics.MAE.of, numbers, lambda p, t, w: np.average(np.abs(p - t), weights=w), "numpy.average", "",
        (np.inf, np.inf)),
    ("RMSE", metrics.RMSE.of, numbers, lambda p, t, w: np.sqrt(np.average((p - t) ** 2, weights=w)), "numpy.average",
        "", (np.nan, 0.0)),
    ("R2", metrics.R2.of, numbers, r2, NUMPY, "Wright, 1921", (0.0, np.nan)),
    (
        "Frechet",
        # With whole weights, each of which counts an example that often.
        lambda a, b, c, d, e, f, w: metrics.Frechet.of(
            tf.stack([a, b, c], -1), tf.stack([d, e, f], -1), 4 * (tf.ones_like(a) if w is None else w)
        ),
        points,
        frechet,
        "numpy.cov, numpy.linalg.eigvals",
        "Heusel et al., 2017",
        (np.nan, np.inf, 0.0, np.inf, 0.0, np.nan),
    ),
    ("ClassCoverage", lambda y, _, w: metrics.ClassCoverage.of(y, 5, w), classes,
        lambda y, _, w: len(np.unique(y[w > 0])), "numpy.unique", "", (99, -1)),
    ("CodeUsage", lambda y, _, w: metrics.CodeUsage.of(y, 5, w), classes, perplexity, "scipy.stats.entropy",
        "van den Oord et al., 2017", (99, -1)),
    ("in_manifold", lambda x: metrics.in_manifold(x, PLANE), plane, in_balls, "NumPy, ball by ball",
        "Kynkäänniemi et al., 2019", None),
]  # fmt: skip


def weighted(inputs: Callable[[Generator, int], Arrays]) -> Callable[[Generator, int], Arrays]:
    """Returns a state's inputs and weights: quarters, whose sums are exact, some of them zero."""

    def made(rng: Generator, rows: int) -> Arrays:
        arrays = inputs(rng, rows)
        return *arrays, rng.integers(0, 5, arrays[0].shape).astype(np.float32) / 4

    return made


def _row(
    part: str,
    metric: Callable[..., Any],
    inputs: Callable[[Generator, int], Arrays],
    peer: Callable[..., Any],
    peer_name: str,
    paper: str,
    garbage: tuple[Any, ...] | None,
) -> MetricRow:
    def exact(_: Any, *arrays: np.ndarray) -> Any:
        return peer(*(x.astype(np.float64) if x.dtype.kind == "f" else x for x in arrays))

    return MetricRow(
        part=part,
        make=lambda rng: metric,
        call=figures,
        inputs=inputs if garbage is None else weighted(inputs),
        peer=exact,
        peer_name=peer_name,
        paper=paper,
        tolerance=2e-6,
        state=garbage is not None,
        garbage=garbage or (),
    )


ROWS_OF_METRICS = [_row(*line) for line in TABLE]
