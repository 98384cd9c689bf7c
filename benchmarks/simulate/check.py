"""Checks of the model against known times."""

from typing import NamedTuple


class Check(NamedTuple):
    """A measured or published time, and the model's prediction."""

    what: str
    known: float
    model: float
    source: str = "here"

    @property
    def error(self) -> float:
        """Returns the model's error relative to the known time."""
        return self.model / self.known - 1
