"""The collective log (ledger): phase, content and size of each collective of a step, known after tracing.

>>> ledger = Ledger()
>>> ledger.add(Collective("net", "gradients", "float32", 4000, replica=0))
>>> ledger.add(Collective("net", "gradients", "float32", 4000, replica=1))  # the other end of the same one
>>> [(entry.phase, entry.bytes) for entry in ledger.collectives]
[('net', 4000)]
"""

from typing import NamedTuple

GRADIENTS, FIGURES, STATISTICS, ROWS, VALUES = "gradients", "figures", "statistics", "rows", "values"
PRECONDITIONERS = "preconditioners"
VARIABLES = "variables"


class Collective(NamedTuple):
    """One collective, as the replica `replica` logs it."""

    phase: str
    what: str  # "gradients" or "variables" with what is sent along, "statistics", "rows" of all, "values" moved
    dtype: str  # several if values of several types are sent together, or the indices of slices
    bytes: int  # that this replica sends
    replica: int | None = None  # that logs it, if each replica does
    axis: str | None = None  # of a mesh, along which it communicates


class Ledger:
    """The log of all collectives of one traced step, in the order of tracing."""

    def __init__(self) -> None:
        self._entries: list[Collective] = []

    def add(self, entry: Collective) -> None:
        """Logs a collective; each replica of the process logs its own entry."""
        self._entries.append(entry)

    def clear(self) -> None:
        """Removes all entries, before the step is traced again."""
        self._entries.clear()

    @property
    def collectives(self) -> list[Collective]:
        """Returns each collective once, as this process's first replica logged it."""
        first = min((entry.replica for entry in self._entries if entry.replica is not None), default=None)
        return [entry for entry in self._entries if entry.replica in (None, first)]

    def of(self, phase: str, what: str | None = None) -> list[Collective]:
        """Returns the collectives of `phase`. `what` selects one kind, such as "gradients"."""
        return [entry for entry in self.collectives if entry.phase == phase and what in (None, entry.what)]
