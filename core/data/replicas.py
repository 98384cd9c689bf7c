"""One stream of elements for each replica, wherever it is."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf


def per_replica(make: Callable[[int], tf.data.Dataset], strategy: tf.distribute.Strategy) -> Any:
    """The streams `make(replica)` of all replicas, over and over, as one that hands each element to its replica.

    Each process makes only the streams of its own replicas, and TensorFlow prefetches them to their devices.
    """

    def of_this_process(context: tf.distribute.InputContext) -> tf.data.Dataset:
        local = context.num_replicas_in_sync // context.num_input_pipelines
        streams = [make(context.input_pipeline_id * local + i) for i in range(local)]
        # Endless, so that no process has to ask the others whether they have an element left.
        if local == 1:
            return streams[0].repeat()
        in_turn = tf.data.Dataset.range(local).repeat()
        return tf.data.Dataset.choose_from_datasets([s.repeat() for s in streams], in_turn, stop_on_empty_dataset=False)

    return strategy.distribute_datasets_from_function(of_this_process)
