"""Elastic workers: which workers remain after failures, and how many of them restart.

The number of workers that can share a step's examples is read from gin files, without TensorFlow. A worker that was
killed or hung isn't restarted: on one machine the cause, such as lack of memory, would recur. The other workers divide
that worker's examples among themselves.

>>> roster = Roster(4, fewest=2, sharing=Sharing(global_batch_size=64))
>>> roster.lose([Ending(3, -9), Ending(0, 6), Ending(1, 6), Ending(2, 6)])
>>> roster.count, str(roster)
(2, "2 of 4 workers (3 can't share 64 examples a step evenly)")
"""

import dataclasses
from collections.abc import Sequence

from absl.flags import FlagValues

from core.errors import ConfigurationError
from trainers.gin_audit.statements import Reference, text
from trainers.launch.endings import Ending
from trainers.process.bootstrap import CHECKOUT, import_packages


@dataclasses.dataclass(frozen=True)
class Sharing:
    """Divides a step's examples, in equal microbatches, among workers with one replica each.

    >>> Sharing(global_batch_size=64, microbatches=2).largest(7)
    4
    """

    global_batch_size: int
    microbatches: int = 1

    def largest(self, workers: int) -> int:
        """Returns the largest number of workers, up to `workers`, that can share a step evenly; 0 if none can."""
        counts = range(1, workers + 1)
        return max((n for n in counts if self.global_batch_size % (self.microbatches * n) == 0), default=0)

    def __str__(self) -> str:
        cut = f" in {self.microbatches} microbatches" if self.microbatches > 1 else ""
        return f"{self.global_batch_size} examples a step{cut}"


def read_sharing(main_flags: FlagValues) -> Sharing:
    """Reads the batch sizes from the gin files. Raises a `ConfigurationError` unless the strategy is `multi_worker`."""
    import_packages("gin")
    from trainers.gin_audit import audit

    configuration = audit.read(main_flags.gin_file, main_flags.gin_param, search=[CHECKOUT])
    strategy = configuration.bound("Experiment.strategy")
    if not (isinstance(strategy, Reference) and strategy.selector.rpartition(".")[2] == "multi_worker"):
        raise ConfigurationError(
            f"`Experiment.strategy` is {'not bound' if strategy is None else text(strategy)}, but the number of "
            "workers can change only with `@multi_worker()`, where each worker holds the whole model: add "
            "`--gin_file=configs/runtime/multi_worker.gin`, or start without `--min_workers`: then all workers restart "
            "together."
        )
    counts = {"global_batch_size": configuration.bound("Trainer.global_batch_size"), "microbatches": 1}
    if (microbatches := configuration.bound("Trainer.microbatches")) is not None:
        counts["microbatches"] = microbatches
    for name, value in counts.items():
        if type(value) is not int or value < 1:
            raise ConfigurationError(
                f"`Trainer.{name}` is {'not bound' if value is None else text(value)}, and it decides how many "
                "workers can share a step: give an integer of at least 1, or a macro for one."
            )
    return Sharing(**counts)


class Roster:
    """Tracks how many of `workers` workers are left after failures. At least `fewest` must be able to start."""

    def __init__(self, workers: int, *, fewest: int, sharing: Sharing):
        self.workers, self.left, self.fewest, self.sharing = workers, workers, fewest, sharing
        if not self.enough:
            remedy = f"give `--min_workers={self.count}`, or a `Trainer.global_batch_size` that more workers divide"
            if not self.count:
                remedy = "give a `Trainer.global_batch_size` that `Trainer.microbatches` divides"
            raise ConfigurationError(
                f"`--min_workers` is {fewest}, but of {workers} workers at most {self.count} can share {sharing} "
                f"evenly: {remedy}."
            )

    @property
    def count(self) -> int:
        """Returns the number of workers to start next: the most that can share a step's examples evenly."""
        return self.sharing.largest(self.left)

    @property
    def enough(self) -> bool:
        return self.count >= self.fewest

    def lose(self, failures: Sequence[Ending]) -> None:
        """Removes the workers that were killed, or if none was, those that hung. The others only lost a peer."""
        killed = [ending for ending in failures if ending.code < 0 and not ending.overdue]
        self.left -= len(killed or [ending for ending in failures if ending.overdue])

    def restore(self) -> None:
        self.left = self.workers

    @property
    def shortage(self) -> str:
        return f"{self} can continue, but `--min_workers` is {self.fewest}"

    def __str__(self) -> str:
        why = f" ({self.left} can't share {self.sharing} evenly)" if self.count < self.left else ""
        return f"{self.count} of {self.workers} workers{why}"
