"""The model beside what is known."""

from typing import NamedTuple


class Check(NamedTuple):
    """What was measured or published, and what the model says of the same."""

    what: str
    known: float
    model: float
    source: str = "here"

    @property
    def error(self) -> float:
        """Returns the model's error, as a part of what is known."""
        return self.model / self.known - 1
