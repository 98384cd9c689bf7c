"""How many workers can share the examples of a step, by a run's gin files; TensorFlow isn't asked.

>>> Sharing(global_batch_size=64, microbatches=2).largest(7)
4
"""

import dataclasses

from absl.flags import FlagValues

from core.errors import ConfigurationError
from trainers.errors.packages import CHECKOUT, import_packages
from trainers.gin_audit.statements import Reference, text


@dataclasses.dataclass(frozen=True)
class Sharing:
    """Divides the examples of a step, in equal microbatches, among workers of one replica each."""

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
