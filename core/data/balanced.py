"""Classes that come equally often in training, however many examples each has.

    Experiment.train_source = @balanced()
    balanced.source = @csv()
    balanced.by = 'label'

With C classes, any C positions in a row that begin at a multiple of C hold one example of each class, in an order drawn
anew; a class goes through all of its examples, each once, before any comes again. So a small class is repeated more
often, and a batch's classes differ by one example at most.

>>> from core.data.arrays import ArraySource
>>> source = balanced(ArraySource({"label": np.array([0, 0, 0, 0, 0, 0, 0, 1])}, name="rare"), by="label")
>>> order = source.order(tf.range(16, dtype=tf.int64), rng=Rng.from_seed(0), span=16)
>>> np.bincount(source.gather(order)["label"]).tolist(), len(source)
([8, 8], 8)
"""

import gin
import numpy as np
import tensorflow as tf

from core.data.permuted import keys_of, permuted
from core.data.reordered import Reordered
from core.data.source import Source
from core.errors import DataError
from core.random import Rng


class Balanced(Reordered):
    """Draws the examples of `source` so that each value of the feature `by` comes equally often."""

    def __init__(self, source: Source, by: str) -> None:
        super().__init__(source, name="balanced")
        labels = self._one_each(by)
        if labels.dtype.kind == "f":
            raise DataError(
                f"`balanced.by` is `{by}`, whose values are {labels.dtype} and no classes; give a feature of integers."
            )
        _, classes, counts = np.unique(labels, return_inverse=True, return_counts=True)
        self._members = np.argsort(classes, kind="stable").astype(np.int64)  # class after class
        self._counts = counts.astype(np.int64)
        self._begins = np.cumsum(self._counts) - self._counts

    def order(self, positions: tf.Tensor, *, rng: Rng, span: int) -> tf.Tensor:
        classes = tf.fill(tf.shape(positions), tf.constant(len(self._counts), tf.int64))
        turns = positions // classes
        chosen = permuted(positions % classes, size=classes, keys=keys_of(rng.fold("classes"), turns))
        counts = tf.gather(self._counts, chosen)
        keys = keys_of(rng.fold("members"), chosen, turns // counts)
        places = permuted(turns % counts, size=counts, keys=keys)
        return tf.gather(self._members, tf.gather(self._begins, chosen) + places)


@gin.configurable
def balanced(source: Source, by: str) -> Source:
    """Makes of `source` one that shows each class of the feature `by` equally often."""
    return Balanced(source, by)
