"""Agreement between workers on facts that only some of them know."""

import numpy as np
import tensorflow as tf

from core.cluster.membership import joined
from core.distribution.registry import backend_of

TEXT_BYTES = 512


class Agreement:
    """Lets all workers agree on a value. Every worker must call the same method. A single process returns at once."""

    def __init__(self, strategy: tf.distribute.Strategy):
        self._replicas, self._total = strategy.num_replicas_in_sync, backend_of(strategy).make_process_sum()

    def any_worker(self, flag: bool) -> bool:
        """Returns true on every worker if at least one worker passed `flag=True`."""
        return self.any_workers(flag)[0]

    def any_workers(self, *flags: bool) -> tuple[bool, ...]:
        """Does the same as `any_worker` for several flags, with one sum over the workers."""
        membership = joined()
        if membership is None or membership.cluster.size == 1:
            return flags
        return tuple(total > 0.0 for total in self._total(tf.constant(flags, tf.float32)).numpy().tolist())

    def first_text(self, text: str | None) -> str | None:
        """Returns the text of the first worker whose `text` isn't empty, up to `TEXT_BYTES` bytes; else None."""
        membership = joined()
        if membership is None or membership.cluster.size == 1:
            return text
        cluster = membership.cluster
        texts = np.zeros([cluster.size, TEXT_BYTES], np.int32)
        own = (text or "").encode(errors="backslashreplace")[:TEXT_BYTES]
        texts[cluster.index, : len(own)] = list(own)
        # Each replica of a worker contributes the same.
        found = self._total(tf.constant(texts)).numpy() // max(1, self._replicas // cluster.size)
        said = [bytes(row[row > 0].tolist()).decode(errors="ignore") for row in found]
        return next(filter(None, said), None)

    def barrier(self) -> None:
        """Waits until every worker has called `barrier`."""
        self.any_worker(False)
