"""What one worker knows and all must act on together."""

import tensorflow as tf

from core.distribution.exchange import Exchange
from core.workers.membership import joined


class Agreement:
    """Questions to all workers. Each of them must ask; a process alone is answered at once."""

    def __init__(self, strategy: tf.distribute.Strategy):
        exchange = Exchange(strategy)

        @tf.function(autograph=False, input_signature=[tf.TensorSpec([], tf.float32)])
        def total(flag: tf.Tensor) -> tf.Tensor:
            return exchange.reduce(exchange.run(tf.identity, flag), phase="agreement", what="a flag")

        self._total = total

    def any_worker(self, flag: bool) -> bool:
        """Returns whether any worker called it with true."""
        membership = joined()
        if membership is None or membership.cluster.size == 1:
            return flag
        return float(self._total(tf.constant(float(flag)))) > 0.0

    def barrier(self) -> None:
        """Waits until every worker has come here."""
        self.any_worker(False)
