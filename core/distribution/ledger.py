"""Which collectives a step makes: where, of what, how large. Known as soon as the step is traced.

>>> ledger = Ledger()
>>> ledger.add(Collective("net", "gradients", "float32", 4000, replica=0))
>>> ledger.add(Collective("net", "gradients", "float32", 4000, replica=1))  # the other end of the same one
>>> [(entry.phase, entry.bytes) for entry in ledger.collectives]
[('net', 4000)]
"""

from typing import NamedTuple

GRADIENTS, FIGURES, STATISTICS, ROWS, VALUES = "gradients", "figures", "statistics", "rows", "values"
VARIABLES = "variables"


class Collective(NamedTuple):
    """One exchange between replicas, as one of them takes part in it."""

    phase: str
    what: str  # "gradients" or "variables" with what rides along, "statistics" of layers, "rows" of all, "values" moved
    dtype: str  # several where values of several types go together, or the indices of slices
    bytes: int  # that this replica hands in
    replica: int | None = None  # that notes it, where each does
    axis: str | None = None  # of a mesh, along which it goes


class Ledger:
    """The collectives of one traced step, in the order in which they are made."""

    def __init__(self) -> None:
        self._entries: list[Collective] = []

    def add(self, entry: Collective) -> None:
        """Notes one; each replica of the process notes its own end of it."""
        self._entries.append(entry)

    def clear(self) -> None:
        """Forgets an earlier trace of the step."""
        self._entries.clear()

    @property
    def collectives(self) -> list[Collective]:
        """Returns each once, as the first replica of this process sees it."""
        first = min((entry.replica for entry in self._entries if entry.replica is not None), default=None)
        return [entry for entry in self._entries if entry.replica in (None, first)]

    def of(self, phase: str, what: str | None = None) -> list[Collective]:
        """Returns the collectives of one phase, of one kind or all."""
        return [entry for entry in self.collectives if entry.phase == phase and what in (None, entry.what)]
