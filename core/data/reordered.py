"""A source whose examples are those of another, by the same numbers, in an order of training of its own.

Evaluation needs no order, and reads each example once, as before. A source that counts an example's weight or its class
says so by its `order` alone; so it is as exact on resuming, and on any number of replicas, as the one it is made of.
"""

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from core.data.source import Kept, Source, check_feature, check_source
from core.errors import DataError


class Reordered(Source):
    """Hands out the examples of `source`; which come when is for `order` to say."""

    def __init__(self, source: Source, *, name: str) -> None:
        check_source(f"{name}.source", source)
        super().__init__(name, size=len(source), place=f"`{source.name}`, {source.place}")
        self.source, self.tokenizer, self.threads = source, source.tokenizer, source.threads

    @property
    def spec(self) -> dict[str, tf.TensorSpec]:
        return self.source.spec

    def gather(self, indices: tf.Tensor) -> dict[str, tf.Tensor]:
        return self.source.gather(indices)

    @property
    def kept(self) -> Kept | None:
        return self.source.kept if type(self).gather is Reordered.gather else None

    def values(self, feature: str) -> npt.NDArray[np.generic] | None:
        return self.source.values(feature)

    def extremes(self, feature: str) -> tuple[int, int, int, int] | None:
        return self.source.extremes(feature)

    def value_range(self, feature: str) -> tuple[float, float] | None:
        return self.source.value_range(feature)

    def _one_each(self, feature: str) -> npt.NDArray[np.generic]:
        """Returns a feature that is one number for each example, from memory."""
        check_feature(self.source, feature)
        values = self.source.values(feature)
        if values is None:
            raise DataError(
                f"`{self.name}` draws by `{feature}`, which the source `{self.source.name}` ({self.source.place}) "
                f"doesn't hold in memory: a source of your own returns it from `values({feature!r})`."
            )
        if values.ndim != 1:
            raise DataError(
                f"`{self.name}` draws by `{feature}`, which has shape {list(values.shape[1:])} in each example of the "
                f"source `{self.source.name}` ({self.source.place}); give a feature that is one number."
            )
        return values
