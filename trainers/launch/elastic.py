"""Which workers are left when some were lost, and how many of them start next.

A worker that was killed, or hung until it had to be, isn't started again: on one machine what took it, want of memory
for one, would take it once more. The others share its part of each step.

>>> roster = Roster(4, fewest=2, sharing=Sharing(global_batch_size=64))
>>> roster.lose([Ending(3, -9), Ending(0, 6), Ending(1, 6), Ending(2, 6)])
>>> roster.count, str(roster)
(2, "2 of 4 workers (3 can't share 64 examples a step evenly)")
"""

from collections.abc import Sequence

from core.errors import ConfigurationError
from trainers.launch.endings import Ending
from trainers.launch.sharing import Sharing


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
        """Puts all who were lost back."""
        self.left = self.workers

    @property
    def shortage(self) -> str:
        """Says why too few are left."""
        return f"{self} can go on, but `--min_workers` is {self.fewest}"

    def __str__(self) -> str:
        why = f" ({self.left} can't share {self.sharing} evenly)" if self.count < self.left else ""
        return f"{self.count} of {self.workers} workers{why}"
