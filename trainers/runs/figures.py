"""Curves of metrics over steps, and the direction in which a metric improves, read from its name.

>>> curve = Curve((100, 200, 300), (0.5, 0.2, 0.3))
>>> curve.last, best("eval/loss", curve), best("eval/accuracy", curve)
((300, 0.3), (200, 0.2), (100, 0.5))
>>> best("eval/temperature", curve) is None
True
"""

import dataclasses
import math
from collections import Counter
from collections.abc import Iterable, Mapping

from core.telemetry.console import format_figure

SMALLER = {
    *("loss", "error", "perplexity", "bits", "entropy", "frechet", "fid", "kid", "mae", "mse", "rmse", "wer", "cer")
}
LARGER = {
    *("accuracy", "auc", "bleu", "bound", "coverage", "diversity", "f1", "iou", "precision", "psnr", "r2", "recall"),
    *("ssim",),
}
RULE = """the best value of a metric is the smallest if its name contains one of
  {smaller};
the largest if it contains one of
  {larger};
and unknown for other names, and for losses of single updates (d/loss), which may compete.""".format(
    smaller=", ".join(sorted(SMALLER)), larger=", ".join(sorted(LARGER))
)
MOST_COLUMNS = 4
Point = tuple[int, float]


@dataclasses.dataclass(frozen=True)
class Curve:
    """One metric at the steps where it was measured; values that weren't finite are NaN."""

    steps: tuple[int, ...]
    values: tuple[float, ...]

    @property
    def last(self) -> Point:
        return self.steps[-1], self.values[-1]

    def at(self, step: int) -> float | None:
        """Returns the last value measured at a step, or `None`."""
        return dict(zip(self.steps, self.values, strict=True)).get(step)

    @property
    def points(self) -> list[Point]:
        return list(zip(self.steps, self.values, strict=True))

    @property
    def finite(self) -> list[Point]:
        return [point for point in self.points if math.isfinite(point[1])]


def sign(name: str) -> int:
    """Returns 1 if larger values of the metric are better, -1 if smaller ones are, and 0 if its name doesn't say."""
    split, *phase, _ = name.split("/")
    words = _words(name)
    if phase and split != "eval" and "loss" in words:  # what follows `eval/` is a source
        return 0
    return bool(words & LARGER) - bool(words & SMALLER)


def has_bound(name: str) -> bool:
    """Returns whether a metric approaches an upper bound, where a logarithmic axis would be flat.

    >>> has_bound("eval/accuracy"), has_bound("roc_auc"), has_bound("eval/loss")
    (True, True, False)
    """
    return bool(_words(name) & LARGER)


def _words(name: str) -> set[str]:
    return {*name.rpartition("/")[2].lower().split("_")}


def best(name: str, curve: Curve) -> Point | None:
    """Returns step and value of the first best point; `None` without a finite value or a known direction."""
    better = sign(name)
    return max(curve.finite, key=lambda point: better * point[1], default=None) if better else None


def last_and_best(name: str, curve: Curve) -> tuple[str, str]:
    """Returns the last value as text, and the best value with its step as text, empty if both values look alike.

    >>> last_and_best("eval/loss", Curve((100, 200, 300), (0.5, 0.2, 0.3)))
    ('0.3000', 'best 0.2000 at 200')
    """
    last, found = format_figure(name, curve.last[1]), best(name, curve)
    if found is None or format_figure(name, found[1]) == last:
        return last, ""
    return last, f"best {format_figure(name, found[1])} at {found[0]:,}"


def main_figures(runs: Iterable[Mapping[str, Curve]]) -> list[str]:
    """Returns metrics with a known direction, most common first: per run two held-out ones, or one of training."""
    counts: Counter[str] = Counter()
    for figures in runs:
        good = [name for name in figures if sign(name)]
        counts.update([name for name in good if not name.startswith("train/")][:2] or good[:1])
    return [name for name, _ in counts.most_common(MOST_COLUMNS)]
