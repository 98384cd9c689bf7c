"""Histograms of the weights during training, for TensorBoard.

In a gin file:

    Trainer.hooks = [@Histograms()]
    Histograms.every = 500
    Histograms.paths = ["*/w"]
"""

from collections.abc import Sequence

import gin

from core.cluster import is_chief
from core.errors import ConfigurationError, shown
from core.module import named_variables
from core.optimizers.paths import matching
from trainers.hooks import Hook, Run


@gin.configurable
class Histograms(Hook):
    """Writes a histogram of each task variable that matches a pattern of `paths`, or of its average."""

    def __init__(self, every: int | None = None, *, paths: Sequence[str] = ("*",)):
        super().__init__(every)
        if isinstance(paths, str) or not paths or not all(isinstance(path, str) for path in paths):
            raise ConfigurationError(f"`Histograms.paths` is {shown(paths)}; give a list of patterns, such as ['*/w'].")
        self.paths = paths

    def check(self, run: Run) -> None:
        try:
            matching(self.paths, named_variables(run.experiment.task), argument="Histograms.paths", what="variable")
        except ValueError as error:
            raise ConfigurationError(str(error)) from None

    def __call__(self, run: Run) -> None:
        run.averaged.update()
        if is_chief():
            variables = named_variables(run.averaged.task)
            chosen = matching(self.paths, variables, argument="Histograms.paths")
            run.telemetry.histograms(run.step, {path: variables[path].numpy() for path in variables if path in chosen})
