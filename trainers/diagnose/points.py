"""What is measured: the experiment as it is configured, and beside it on fewer replicas and other batches."""

import dataclasses
from collections.abc import Mapping

from core.measure import peak_memory, reset_peak_memory
from trainers.diagnose.bench import Bench
from trainers.diagnose.times import Times


@dataclasses.dataclass(frozen=True)
class Point:
    """One number of replicas and one size of the batch, measured."""

    name: str
    replicas: int
    global_batch_size: int
    times: Times
    memory: Mapping[str, int]  # the most bytes that were held at a time, by device

    @property
    def examples_per_second(self) -> float:
        return self.global_batch_size / self.times.step


def measured(bench: Bench, hooks: Mapping[str, float] = {}) -> Point:
    """Measures one point."""
    trainer = bench.trainer
    reset_peak_memory()
    bench.synthetic()
    memory = peak_memory()  # of the step alone: programs that are without a part are one more each
    replicas, batch = trainer.train_step.exchange.replicas, trainer.settings.global_batch_size
    name = f"{replicas} replica{'s' if replicas > 1 else ''}, batch {batch}"
    return Point(name, replicas, batch, bench.times(hooks), memory)
