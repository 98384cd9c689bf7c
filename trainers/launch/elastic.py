"""Which workers are left when some were lost, and how many of them start next.

Gin files say how many can share the examples of a step; TensorFlow isn't asked. A worker that was killed, or hung until
it had to be, isn't started again: on one machine what took it, want of memory for one, would take it once more. The
others share its part of each step.

>>> roster = Roster(4, fewest=2, sharing=Sharing(global_batch_size=64))
>>> roster.lose([Ending(3, -9), Ending(0, 6), Ending(1, 6), Ending(2, 6)])
>>> roster.count, str(roster)
(2, "2 of 4 workers (3 can't share 64 examples a step evenly)")
"""

import dataclasses
from collections.abc import Sequence

from absl.flags import FlagValues

from core.errors import ConfigurationError
from trainers.errors.packages import CHECKOUT, import_packages
from trainers.gin_audit.statements import Reference, text
from trainers.launch.endings import Ending


@dataclasses.dataclass(frozen=True)
class Sharing:
    """Divides the examples of a step, in equal microbatches, among workers of one replica each.

    >>> Sharing(global_batch_size=64, microbatches=2).largest(7)
    4
    """

    global_batch_size: int
    microbatches: int = 1

    def largest(self, workers: int) -> int:
        """Returns the largest count up to `workers` that gives each of them equally many rows; 0 if there is none."""
        counts = range(1, workers + 1)
        return max((n for n in counts if self.global_batch_size % (self.microbatches * n) == 0), default=0)

    def __str__(self) -> str:
        cut = f" in {self.microbatches} microbatches" if self.microbatches > 1 else ""
        return f"{self.global_batch_size} examples a step{cut}"


def read_sharing(main_flags: FlagValues) -> Sharing:
    """Finds what the flags of `trainers.main` ask for; refuses a strategy whose number of workers can't change."""
    import_packages("gin")
    from trainers.gin_audit import audit

    configuration = audit.read(main_flags.gin_file, main_flags.gin_param, search=[CHECKOUT])
    strategy = configuration.bound("Experiment.strategy")
    if not (isinstance(strategy, Reference) and strategy.selector.rpartition(".")[2] == "multi_worker"):
        raise ConfigurationError(
            f"`Experiment.strategy` is {'not bound' if strategy is None else text(strategy)}, but only with "
            "`@multi_worker()` may their number change, as each worker holds the whole model: add "
            "`--gin_file=configs/runtime/multi_worker.gin`, or start without `--min_workers`: all then start again "
            "together."
        )
    counts = {"global_batch_size": configuration.bound("Trainer.global_batch_size"), "microbatches": 1}
    if (microbatches := configuration.bound("Trainer.microbatches")) is not None:
        counts["microbatches"] = microbatches
    for name, value in counts.items():
        if type(value) is not int or value < 1:
            raise ConfigurationError(
                f"`Trainer.{name}` is {'not bound' if value is None else text(value)}, and it decides how many "
                "workers can share a step: give a whole number, at least 1, or a macro that is one."
            )
    return Sharing(**counts)


class Roster:
    """Keeps count of the workers that are left of `workers`; `fewest` of them have to start."""

    def __init__(self, workers: int, *, fewest: int, sharing: Sharing):
        self.workers, self.left, self.fewest, self.sharing = workers, workers, fewest, sharing
        if not self.enough:
            remedy = f"give `--min_workers={self.count}`, or a `Trainer.global_batch_size` that more divide"
            if not self.count:
                remedy = "give a `Trainer.global_batch_size` that `Trainer.microbatches` divides"
            raise ConfigurationError(
                f"`--min_workers` is {fewest}, but of {workers} workers at most {self.count} can share {sharing} "
                f"evenly: {remedy}."
            )

    @property
    def count(self) -> int:
        """Returns how many start next: as many as can share a step."""
        return self.sharing.largest(self.left)

    @property
    def enough(self) -> bool:
        return self.count >= self.fewest

    def lose(self, failures: Sequence[Ending]) -> None:
        """Strikes off who died by themselves; who hung only because another died is still good."""
        killed = [ending for ending in failures if ending.code < 0 and not ending.overdue]
        self.left -= len(killed or [ending for ending in failures if ending.overdue])

    def restore(self) -> None:
        self.left = self.workers

    @property
    def shortage(self) -> str:
        return f"{self} can go on, but `--min_workers` is {self.fewest}"

    def __str__(self) -> str:
        why = f" ({self.left} can't share {self.sharing} evenly)" if self.count < self.left else ""
        return f"{self.count} of {self.workers} workers{why}"
