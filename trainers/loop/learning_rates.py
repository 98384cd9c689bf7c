"""The learning rates of a metric line: those of the last update of each optimizer, not means since the last line."""

from collections.abc import Callable, Mapping

from core.optimizers import Optimizer, last_rates


def rate_figures(
    optimizers: Mapping[str, Optimizer], *, outer: Optimizer | None = None
) -> Callable[[], dict[str, float]]:
    """Returns a function that reads them: that of one optimizer as `learning_rate`, those of several by phase.

    The rate of the `outer` rule of local steps is `outer/learning_rate`.
    """
    named = {f"{phase}/" if len(optimizers) > 1 else "": optimizer for phase, optimizer in optimizers.items()}
    readers = {before: last_rates(x) for before, x in (named | ({"outer/": outer} if outer else {})).items()}

    def read() -> dict[str, float]:
        return {
            f"{before}learning_rate{group}": rate for before, last in readers.items() for group, rate in last().items()
        }

    return read
