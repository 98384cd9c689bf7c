"""Whether a run learns its training examples by heart: it gets better on them, and worse on those held out."""

import math
from collections.abc import Mapping
from typing import Any

LOSS = "loss"
MARGIN = 0.1  # of the lowest loss held out; within it evaluations differ by chance


class Divergence:
    """Compares each evaluation with the best one, and the training loss of then with that of now."""

    def __init__(self) -> None:
        self._training: float | None = None
        self._best: dict[str, float] = {}  # step, loss and training loss of the best evaluation
        self._worse = False  # whether the last evaluation was worse than that, though training was better

    def trained(self, figures: Mapping[str, float]) -> None:
        """Hears the figures of a metric line."""
        self._training = figures.get(LOSS)

    def held_out(self, step: int, figures: Mapping[str, float]) -> str | None:
        """Hears those of an evaluation; returns a warning where it is the second in a row that is worse."""
        loss, training, best = figures.get(LOSS), self._training, self._best
        if loss is None or training is None or math.isnan(loss):  # with which nothing would ever compare
            return None
        if not best or loss < best["loss"]:
            self._best, self._worse = {"step": step, "loss": loss, "training": training}, False
            return None
        before, self._worse = (
            self._worse,
            loss - best["loss"] > MARGIN * abs(best["loss"]) and training < best["training"],
        )
        if not (before and self._worse):
            return None
        return (
            f"the loss held out has risen from {best['loss']:.4g} at step {best['step']} to {loss:.4g}, while that of "
            f"training has fallen from {best['training']:.4g} to {training:.4g}: the network learns its examples by "
            "heart. Fewer steps, more data, dropout or weight decay usually help."
        )

    def state(self) -> dict[str, Any]:
        """Returns what a checkpoint keeps."""
        return {"training": self._training, "best": self._best, "worse": self._worse} if self._best else {}

    def load(self, state: Mapping[str, Any]) -> None:
        """Takes it over."""
        self._training, self._best, self._worse = state["training"], dict(state["best"]), state["worse"]
