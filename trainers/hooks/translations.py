"""Pictures of translated held-out images during training of an image translation.

In a gin file:

    Trainer.hooks = [@Translations()]
    Translations.every = 500
    Translations.judge = @kept_digits()
"""

from collections.abc import Callable

import gin
import tensorflow as tf

from core.arguments import is_size
from core.cluster import is_chief
from core.data import Source, check_feature
from core.engine.inspect_use import inspected
from core.errors import ConfigurationError, shown
from core.precision import SAMPLE
from core.task import Batch
from models.translation.task import checked_translation
from trainers.errors.tensorflow import explained
from trainers.hooks import Hook, Run, keep_sample
from trainers.hooks.samples import encode_grid

ROWS = 64  # translated at once


@gin.configurable
class Translations(Hook):
    """Writes a picture of the first `count` held-out images `a` and their translations, to `samples/` and TensorBoard.

    A `judge` is called with the translations of all held-out images and their `label`s, and returns metrics. Without an
    evaluation source, training images are used.
    """

    def __init__(
        self,
        every: int | None = None,
        *,
        count: int = 16,
        judge: Callable[[tf.Tensor, tf.Tensor], dict[str, float]] | None = None,
    ):
        super().__init__(every)
        if not is_size(count):
            raise ConfigurationError(
                f"`Translations.count` is {shown(count)}; it is a number of images: give 1 or more."
            )
        self.count, self.judge = count, judge
        self._translate: Callable[[tf.Tensor], Batch] | None = None

    def check(self, run: Run) -> None:
        checked_translation(run.experiment.task)
        self._translate = self._translator(run)

    def __call__(self, run: Run) -> None:
        run.averaged.update()
        if not is_chief():
            return
        made = self._translated(run)
        png = encode_grid(tf.concat([made["a"], made["translated"]], axis=2)[: self.count])
        keep_sample(run, f"step-{run.step:09d}.png", png)
        run.telemetry.image(run.step, "translations", png)
        if self.judge:
            run.report("quality", self.judge(made["translated"], made["label"]))

    def _source(self, run: Run) -> Source:
        """Returns the source of the images to translate, after checking that it has the required features."""
        source = run.experiment.shown_source
        for feature in ("a", "b", "label") if self.judge else ("a", "b"):
            check_feature(source, feature)
        return source

    def _translator(self, run: Run) -> Callable[[tf.Tensor], Batch]:
        """Traces a function that translates the examples with given indices, and returns it without calling it."""
        source, task = self._source(run), checked_translation(run.averaged.task)
        narrowing = run.experiment.narrowing(SAMPLE, source.spec)

        @tf.function(input_signature=[tf.TensorSpec([None], tf.int64)], autograph=False)
        def translate(indices: tf.Tensor) -> Batch:
            batch = source.gather(indices)
            a, _ = task.held_out(batch)
            made = lambda: narrowing.call(lambda batch: task.translate(batch["a"]), {"a": a})  # noqa: E731
            translated = inspected(task, "`translate`", made, say=run.telemetry.note)
            labels = {"label": batch["label"]} if self.judge else {}
            return {"a": a, "translated": translated, **labels}

        with explained(source):
            translate.get_concrete_function()
        return translate

    def _translated(self, run: Run) -> Batch:
        """Returns the translations of the held-out images: of all for `judge`, else of the first `count`."""
        source, self._translate = self._source(run), self._translate or self._translator(run)
        count = len(source) if self.judge else min(self.count, len(source))
        with explained(source):
            parts = [
                self._translate(tf.range(first, min(first + ROWS, count), dtype=tf.int64))
                for first in range(0, count, ROWS)
            ]
        return {key: tf.concat([part[key] for part in parts], 0) for key in parts[0]}
