"""What one worker knows and all must act on together."""

from collections.abc import Callable

import tensorflow as tf

from core.distribution.exchange import Exchange
from core.workers.membership import joined


def make_agreement(strategy: tf.distribute.Strategy) -> Callable[[bool], bool]:
    """`any_of_us(flag)`: whether any worker called it with true. All must call it; a process alone just answers."""
    exchange = Exchange(strategy)

    @tf.function(autograph=False, input_signature=[tf.TensorSpec([], tf.float32)])
    def total(flag: tf.Tensor) -> tf.Tensor:
        return exchange.first(exchange.run(lambda x: exchange.sum(x, phase="agreement", what="a flag"), flag))

    def any_of_us(flag: bool) -> bool:
        membership = joined()
        if membership is None or membership.cluster.size == 1:
            return flag
        return float(total(tf.constant(float(flag)))) > 0.0

    return any_of_us
