"""`Task`: a model's networks and the phases that train them; a phase's step function returns a `Loss`.

    class SpiralTask(Task):
        def __init__(self, *, rng, optimizer):
            super().__init__()
            self.net = Mlp([2, 64, 2], rng=rng)
            self.optimizer = optimizer

        def phases(self):
            return [Update("net", loss=self.loss, trains=self.net, optimizer=self.optimizer)]

        def loss(self, batch, rng):
            logits = self.net(batch["x"])
            return Loss(softmax_cross_entropy(logits, batch["y"]))

A step function is a plain function: a unit test can call it eagerly, without a strategy or trainer.
"""

from collections.abc import Mapping, Sequence

import tensorflow as tf

from core.data import Examples, check_feature
from core.errors import ConfigurationError
from core.module import Module
from core.random import Rng
from core.task.loss import Batch, Loss
from core.task.phases import Phase
from core.task.reads import Feature
from core.task.serve import Served


class Task(Module):
    """A model to train: its networks (made in `__init__`) and its phases.

    `one_device` names attributes whose modules are stored on one device only. Such a module uses no memory elsewhere,
    and only phases placed on that device can read it. `frozen` names attributes whose modules no phase trains, such as
    a pretrained encoder. Any other trainable variable that no phase trains raises an error.
    """

    one_device: Sequence[str] = ()
    frozen: Sequence[str] = ()

    def phases(self) -> Sequence[Phase]:
        """Lists the phases of one training step, in the order in which they run."""
        raise ConfigurationError(f"`{type(self).__name__}` needs `phases()`: a list of `Update` and `Compute`.")

    def reads(self) -> Mapping[str, Feature]:
        """Returns the features of an example that the task reads: `{"image": Image([8, 8, 1]), "label": Label(10)}`."""
        return {}

    def check_source(self, source: Examples) -> None:
        """Raises a `DataError` if `source` lacks a feature of `reads()`; called before the first step."""
        for feature, expected in self.reads().items():
            check_feature(source, feature)
            expected.check(source, feature, task=type(self).__name__)

    def evaluate(self, batch: Batch) -> Loss:
        """Returns the loss and metrics of a batch of held-out examples, one value per example."""
        raise ConfigurationError(f"`{type(self).__name__}` needs `evaluate(batch) -> Loss` to be evaluated.")

    def sample(self, rng: Rng, n: int) -> Batch:
        """Makes `{"image": [n, height, width, channels]}` in [-1, 1]. Conditional tasks add the `"label"` of each."""
        raise ConfigurationError(f"`{type(self).__name__}` makes no samples: it needs `sample(rng, n)`.")

    def serve(self, features: Mapping[str, tf.TensorSpec]) -> Mapping[str, Served]:
        """Returns the exported functions by name, the default one first. `features` are specs of the source's batch."""
        raise ConfigurationError(
            f"`{type(self).__name__}` can't be exported: it doesn't say what it offers. Write in it, with your names "
            "and `from core.task import Served`:\n"
            "    def serve(self, features):\n"
            '        return {"predict": Served(self.predict, {"x": features["x"]})}\n'
            "    def predict(self, batch):\n"
            '        return {"y": self.net(batch["x"])}\n'
            "See docs/use-a-run.md#export-your-task."
        )
