"""Statistics of the inputs and outputs of modules during training.

In a gin file:

    Trainer.hooks = [@Activations()]
    Activations.every = 500
    Activations.paths = ["net/layers/*"]
"""

from collections.abc import Mapping, Sequence
from typing import Any

import gin
import tensorflow as tf

from core.arguments import is_size
from core.cluster import is_chief
from core.data import Source
from core.errors import ConfigurationError, shown
from core.module import named_modules
from core.optimizers.paths import matching
from core.precision import EVALUATE
from core.task import Batch
from core.task.module_calls import observed_calls
from core.tensorflow_private import get_default_graph
from trainers.errors.tensorflow import explained
from trainers.hooks import Hook, Run

DEAD = 0.5  # share of units; fewer inactive units are normal


@gin.configurable
class Activations(Hook):
    """Calls `evaluate`, and writes metrics `activations` for modules whose path matches a pattern of `paths`.

    Metrics of inputs are `given/PATH/...`, and of outputs `returned/PATH/...`: `mean`, `deviation`, `zeros` and `dead`.
    `zeros` is the share of zero values, `dead` the share of units (last axis) that are zero for every example. Uses the
    first `count` held-out examples, or training examples without an evaluation source. Only a module's first call
    counts. Warns if half of the units are dead twice in a row.
    """

    def __init__(self, every: int | None = None, *, paths: Sequence[str] = ("*",), count: int = 256):
        super().__init__(every)
        if isinstance(paths, str) or not paths or not all(isinstance(path, str) for path in paths):
            raise ConfigurationError(f"`Activations.paths` is {shown(paths)}; give a list of patterns, as ['net/*'].")
        if not is_size(count):
            raise ConfigurationError(
                f"`Activations.count` is {shown(count)}; it is a number of examples: give 1 or more."
            )
        self.paths, self.count = paths, count
        self._dead: list[str] = []
        self._look: Any = None

    def check(self, run: Run) -> None:
        try:
            matching(self.paths, named_modules(run.experiment.task), argument="Activations.paths", what="module")
        except ValueError as error:
            raise ConfigurationError(str(error)) from None

    def __call__(self, run: Run) -> None:
        run.averaged.update()
        if not is_chief():
            return
        source = run.experiment.shown_source
        with explained(source):
            batch = source.gather(tf.range(min(self.count, len(source)), dtype=tf.int64))
        self._look = self._look or self._looking(run, source)
        figures = {name: float(x) for name, x in self._look(batch).items()}
        run.telemetry.write(run.step, "activations", figures, shown=False)
        dead = [name for name, x in figures.items() if name.endswith("/dead") and x >= DEAD]
        again = [name for name in dead if name in self._dead]
        if again:
            which, _, path = again[0].removesuffix("/dead").partition("/")
            others = f" (so it is in {len(again) - 1} more places)" if again[1:] else ""
            run.telemetry.warn_once(
                f"{figures[again[0]]:.0%} of the units that `{path}` {'is given' if which == 'given' else 'returns'} "
                f"are dead: zero for each example{others}. A lower learning rate, or an activation that is never "
                "exactly zero, usually helps."
            )
        self._dead = dead

    def state(self) -> dict[str, Any]:
        return {"dead": self._dead}

    def load(self, state: Mapping[str, Any]) -> None:
        self._dead = list(state["dead"])

    def _looking(self, run: Run, source: Source) -> Any:
        """Returns a `tf.function` that calls the task's `evaluate(batch)` and returns the metrics by name."""
        task, narrowing = run.averaged.task, run.experiment.narrowing(EVALUATE, source.spec)

        @tf.function(autograph=False)
        def look(batch: Batch) -> dict[str, tf.Tensor]:
            found: dict[str, tf.Tensor] = {}
            graph = get_default_graph()

            def hear(name: str, x: tf.Tensor) -> None:
                if x.graph is graph:  # tensors within a loop can't be used outside of it
                    found.update({key: value for key, value in _statistics(name, x).items() if key not in found})

            with observed_calls(task, self.paths, hear):
                narrowing.call(task.evaluate, batch)
            return found

        return look


def _statistics(name: str, x: tf.Tensor) -> dict[str, tf.Tensor]:
    x = tf.cast(x, tf.float32)
    zero = tf.equal(x, 0.0)
    dead = tf.reduce_all(zero, list(range(x.shape.rank - 1)))
    figures = {
        "mean": tf.reduce_mean(x),
        "deviation": tf.math.reduce_std(x),
        "zeros": tf.reduce_mean(tf.cast(zero, tf.float32)),
        "dead": tf.reduce_mean(tf.cast(dead, tf.float32)),
    }
    return {f"{name}/{key}": value for key, value in figures.items()}
