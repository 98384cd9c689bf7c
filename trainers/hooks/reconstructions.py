"""Pictures of reconstructed held-out images during training of an autoencoder.

In a gin file:

    Trainer.hooks = [@Reconstructions()]
    Reconstructions.every = 500
"""

from collections.abc import Callable
from typing import Any

import gin
import tensorflow as tf

from core.arguments import is_size
from core.cluster import is_chief
from core.engine.inspect_use import inspected
from core.errors import ConfigurationError, shown
from core.precision import SAMPLE
from core.task import Batch
from trainers.errors.tensorflow import explained
from trainers.hooks import Hook, Run, keep_sample
from trainers.hooks.samples import encode_grid


@gin.configurable
class Reconstructions(Hook):
    """Writes the first `count` held-out images next to their reconstructions, to `samples/` and TensorBoard.

    The task's `reconstruct(batch)` returns `{"image", "reconstructed"}` in [-1, 1]. Without an evaluation source,
    training images are used.
    """

    def __init__(self, every: int | None = None, *, count: int = 16):
        super().__init__(every)
        if not is_size(count):
            raise ConfigurationError(
                f"`Reconstructions.count` is {shown(count)}; it is a number of images: give 1 or more."
            )
        self.count = count
        self._reconstruct: Callable[[], Batch] | None = None

    def check(self, run: Run) -> None:
        self._reconstruct = self._reconstructor(run)

    def __call__(self, run: Run) -> None:
        run.averaged.update()
        if not is_chief():
            return
        self._reconstruct = self._reconstruct or self._reconstructor(run)
        with explained(run.experiment.shown_source):
            made = self._reconstruct()
        png = encode_grid(tf.concat([made["image"], made["reconstructed"]], axis=2))
        keep_sample(run, f"reconstructed-{run.step:09d}.png", png)
        run.telemetry.image(run.step, "reconstructions", png)

    def _reconstructor(self, run: Run) -> Callable[[], Batch]:
        task: Any = run.averaged.task
        if not hasattr(task, "reconstruct"):
            raise ConfigurationError(
                f"`{type(task).__name__}` reconstructs no images: it needs `reconstruct(batch)`, which returns "
                '`{"image": ..., "reconstructed": ...}`. Remove the hook `Reconstructions`, or train a `Vae`.'
            )
        source = run.experiment.shown_source
        narrowing = run.experiment.narrowing(SAMPLE, source.spec)
        indices = tf.range(min(self.count, len(source)), dtype=tf.int64)

        @tf.function(autograph=False)
        def reconstruct() -> Batch:
            batch = source.gather(indices)
            say = run.telemetry.note
            made: Batch = inspected(task, "`reconstruct`", lambda: narrowing.call(task.reconstruct, batch), say=say)
            return made

        with explained(source):
            reconstruct.get_concrete_function()
        return reconstruct
