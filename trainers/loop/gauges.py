"""What a person at a terminal sees of a run between its metric lines: how fast it is, and what it takes."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path

import tensorflow as tf

from core.distribution import Backend
from core.estimate import operations_of
from trainers.loop.speed_meter import Meter
from trainers.loop.utilisation import measured_peak

STATISTICS = Path("/proc/self/statm")  # sizes of this process in pages, that of what is in memory second


class Gauge:
    """A figure that is read when it is shown."""

    def __init__(self, read: Callable[[], float]):
        self._read = read

    def __float__(self) -> float:
        return self._read()


def make_gauges(meter: Meter, global_batch_size: int, chunk: object, backend: Backend) -> Mapping[str, Gauge]:
    """Returns the gauges of a run whose `chunk` is traced. None waits for a device.

    The devices' peak is measured here, in a moment; the chief of asynchronous training has none at work.
    """
    gauges = {
        "examples_per_second": Gauge(lambda: meter.figures(global_batch_size)["examples_per_second"]),
        "data_wait": Gauge(lambda: meter.figures(global_batch_size)["data_wait"]),
        "memory": Gauge(memory_in_use),
    }
    graph = getattr(chunk, "graph", None)
    if graph is not None and backend.steps_here:
        share = operations_of(graph) / measured_peak(backend.strategy.extended.worker_devices)
        gauges["utilisation"] = Gauge(lambda: share / meter.figures(global_batch_size)["step_seconds"])
    return gauges


def memory_in_use() -> float:
    """Returns the bytes that this process holds: of its GPUs' memory where it has any, else of the machine's."""
    gpus = tf.config.list_logical_devices("GPU")
    if gpus:
        return float(sum(tf.config.experimental.get_memory_info(gpu.name)["current"] for gpu in gpus))
    return float(STATISTICS.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
