"""Early stopping: ends a run that no longer improves."""

import math
from collections.abc import Mapping
from typing import Any

import gin

from core.arguments import is_size
from core.checkpoint import Keep
from core.errors import ConfigurationError, shown
from trainers.hooks import Hook, Run
from trainers.options.checkpoints import better_of


@gin.configurable
class EarlyStopping(Hook):
    """Evaluates every `every` steps, and ends the run after `patience` evaluations in a row without improvement.

    `figure` is a direction and a metric: "max accuracy", or "min noisy/loss" for the source named `noisy`. An
    improvement beats the best value so far by more than `least_change`. `Trainer.keep_best` keeps the best checkpoint.
    """

    def __init__(
        self, figure: str = gin.REQUIRED, *, every: int = gin.REQUIRED, patience: int = 3, least_change: float = 0.0
    ):
        super().__init__(every)
        self.better = better_of(figure, "EarlyStopping.figure")
        if not is_size(patience):
            raise ConfigurationError(
                f"`EarlyStopping.patience` is {shown(patience)}; it is a number of evaluations: give 1 or more."
            )
        number = isinstance(least_change, float | int) and not isinstance(least_change, bool)
        if not number or not 0.0 <= least_change < math.inf:
            raise ConfigurationError(
                f"`EarlyStopping.least_change` is {shown(least_change)}; it is a difference of the metric: give 0 or a "
                "positive number."
            )
        self.patience, self.least_change = patience, least_change
        self._best: dict[str, float] = {}  # step and value
        self._waited = 0  # evaluations since then

    def check_kept(self, keep: Keep, checkpoint_every: int | None) -> None:
        if keep.best != self.better:
            raise ConfigurationError(
                f"`EarlyStopping.figure` is {shown(str(self.better))} and `Trainer.keep_best` "
                f"{shown(keep.best and str(keep.best))}; the best checkpoint would be lost when the run ends. Give "
                "both the same value, for example by a gin macro."
            )
        if checkpoint_every is None or self.every is None or self.every % checkpoint_every:
            raise ConfigurationError(
                f"`{self.interval_name}` is {self.every}, which isn't a multiple of `Trainer.checkpoint_every` = "
                f"{checkpoint_every}; the best step must be saved. Give both the same value."
            )

    def __call__(self, run: Run) -> None:
        value = run.evaluate()[self.better.figure]
        margin = self.least_change if self.better.way == "max" else -self.least_change
        if math.isfinite(value) and (not self._best or self.better.beats(value, self._best["value"] + margin)):
            self._best, self._waited = {"step": run.step, "value": value}, 0
            return
        self._waited += 1
        if self._waited >= self.patience:
            best = f"{self._best['value']:.4g} at step {self._best['step']}" if self._best else "a number"
            run.stop(f"`{self.better.figure}` was no better than {best} in {self._waited} evaluations")

    def state(self) -> dict[str, Any]:
        return {"best": self._best, "waited": self._waited}

    def load(self, state: Mapping[str, Any]) -> None:
        self._best, self._waited = dict(state["best"]), state["waited"]
