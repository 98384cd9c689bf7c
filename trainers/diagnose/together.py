"""Numbers on which all workers must agree, though each has a clock of its own. A process alone agrees with itself."""

from collections.abc import Sequence

from core.distribution import Agreement
from core.workers import joined

NUMBERS_A_TEXT = 32  # of 512 bytes


def agreed(numbers: Sequence[float], agreement: Agreement) -> list[float]:
    """Returns the chief's numbers, to nine digits; every worker calls it with as many."""
    found = list[float]()
    for first in range(0, len(numbers), NUMBERS_A_TEXT):
        text = " ".join(f"{x:.9g}" for x in numbers[first : first + NUMBERS_A_TEXT])
        found += map(float, (agreement.first_text(text) or "").split())
    return found


def of_each_worker(numbers: Sequence[float], agreement: Agreement) -> list[float]:
    """Returns the first number of the first worker, the second of the second, and so on."""
    membership = joined()
    if membership is None or membership.cluster.size == 1:
        return list(numbers)
    own = membership.cluster.index
    texts = [agreement.first_text(f"{x:.9g}" if i == own else None) for i, x in enumerate(numbers)]
    return [float(text or "nan") for text in texts]
