"""The measured points: the experiment as configured, and with fewer replicas and smaller batches."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from core.measure import peak_memory, reset_peak_memory
from trainers.performance.diagnose.bench import Bench
from trainers.performance.diagnose.times import Times


class Scale(NamedTuple):
    """A number of replicas, and their global batch size."""

    replicas: int
    global_batch_size: int


@dataclasses.dataclass(frozen=True)
class Point:
    """The measurements of one scale."""

    scale: Scale
    times: Times
    memory: Mapping[str, int]  # peak bytes by device

    @property
    def name(self) -> str:
        return f"{self.scale.replicas} x {self.scale.global_batch_size // self.scale.replicas}"

    @property
    def examples_per_second(self) -> float:
        """Returns the examples per second of training, with hooks."""
        return self.scale.global_batch_size / self.times.step


class Efficiency(NamedTuple):
    """The throughput of replicas as a fraction of the ideal, with `real` input and on one `synthetic` batch."""

    real: float
    synthetic: float


def scales(configured: Scale, microbatches: int) -> list[Scale]:
    """Returns scales of 1, 2, 4, ... replicas with the whole batch (strong) or their share (weak), then `configured`.

    >>> [tuple(scale) for scale in scales(Scale(4, 64), 1)]
    [(1, 64), (2, 64), (1, 16), (2, 32), (4, 64)]
    """
    fewer = [2**i for i in range(configured.replicas.bit_length()) if 2**i < configured.replicas]
    rows = configured.global_batch_size // configured.replicas
    both = [*(Scale(n, configured.global_batch_size) for n in fewer), *(Scale(n, rows * n) for n in fewer), configured]
    return [scale for scale in both if scale.global_batch_size % (scale.replicas * microbatches) == 0]


def measured(bench: Bench, hooks: Mapping[str, float] = {}) -> Point:
    """Measures the times and peak memory of one bench."""
    trainer = bench.trainer
    reset_peak_memory()
    bench.synthetic()
    memory = peak_memory()  # read before the programs of parts, which take more
    scale = Scale(trainer.train_step.exchange.replicas, trainer.settings.global_batch_size)
    return Point(scale, bench.times(hooks), memory)


def strong(point: Point, points: Sequence[Point], *, shared: bool) -> Efficiency | None:
    """Compares `point` to one device with the whole batch. If replicas share cores, the ideal is equal speed."""
    return _against(point, Scale(1, point.scale.global_batch_size), points, shared=shared)


def weak(point: Point, points: Sequence[Point], *, shared: bool) -> Efficiency | None:
    """Compares `point` to one device with one replica's share of the batch."""
    return _against(point, Scale(1, point.scale.global_batch_size // point.scale.replicas), points, shared=shared)


def _against(point: Point, scale: Scale, points: Sequence[Point], *, shared: bool) -> Efficiency | None:
    one = next((each for each in points if each.scale == scale), None)
    if one is None or point.scale.replicas == 1:
        return None
    ideal = (1 if shared else point.scale.replicas) * scale.global_batch_size / point.scale.global_batch_size
    return Efficiency(one.times.real / point.times.real / ideal, one.times.synthetic / point.times.synthetic / ideal)
