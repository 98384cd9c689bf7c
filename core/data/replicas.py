"""Gives each replica its own input stream, on any device and in any process."""

import functools
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from core.tensorflow_private import next_element

SOME = 1024  # values of a feature, enough to see how a strategy passes it on
PREFETCHED = 2  # elements, on a device with its own memory


class PerReplica:
    """Iterates over values per replica. Each replica gets the elements of its own dataset `make(replica)`, repeated.

    A process makes only the datasets of its own replicas. TensorFlow's distributed iterators aren't used: the process
    crashes if one is dropped while it prefetches.
    """

    def __init__(self, make: Callable[[int], tf.data.Dataset], strategy: tf.distribute.Strategy):
        self._make, self._strategy = functools.cache(make), strategy  # making a stream traces its maps

    @property
    def element_spec(self) -> Any:
        """Returns the spec of an element, for the `input_signature` of a `tf.function`."""
        return per_replica_spec(self._make(0).element_spec, self._strategy)

    def __iter__(self) -> Iterator[Any]:
        streams: dict[int, Iterator[Any]] = {}

        def element(replica: int) -> Any:
            if replica not in streams:
                # Endless, so that no process has to ask the others whether elements are left.
                streams[replica] = iter(self._on_device(self._make(replica).repeat(), replica))
            return next_element(streams[replica])

        while True:
            yield _spread(element, self._strategy)

    def _on_device(self, stream: tf.data.Dataset, replica: int) -> tf.data.Dataset:
        devices = self._strategy.extended.worker_devices
        device = devices[replica % len(devices)]
        if "GPU" in device:
            return stream.apply(tf.data.experimental.prefetch_to_device(device, PREFETCHED))
        return stream  # which is prefetched on the host


def per_replica_spec(spec: Any, strategy: tf.distribute.Strategy) -> Any:
    """Returns the spec of a `PerReplica` element. `spec` is that of one replica's dataset.

    It makes no real element, because elements may be large.
    """
    replicas = len(strategy.experimental_local_results(_spread(lambda _: tf.zeros([]), strategy)))

    def spec_of(one: tf.TensorSpec) -> Any:
        count = min(one.shape.num_elements(), SOME)  # a mesh passes few integers on in another way
        some = tf.type_spec_from_value(_spread(lambda _: tf.zeros([count], one.dtype), strategy))
        if isinstance(some, tf.TensorSpec):
            return tf.TensorSpec(one.shape, some.dtype)
        return type(some)(*[tf.TensorSpec(one.shape, one.dtype)] * replicas)

    return tf.nest.map_structure(spec_of, spec)


def _spread(value_of: Callable[[int], Any], strategy: tf.distribute.Strategy) -> Any:
    return strategy.experimental_distribute_values_from_function(
        lambda context: value_of(context.replica_id_in_sync_group)
    )
