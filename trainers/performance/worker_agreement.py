"""Numbers on which all workers must agree, though each has a clock of its own. A process alone agrees with itself."""

from collections.abc import Sequence

from core.cluster import joined
from core.distribution import Agreement

NUMBERS_A_TEXT = 32  # of 512 bytes


def agreed(numbers: Sequence[float], agreement: Agreement) -> list[float]:
    """Returns the chief's numbers, to nine digits; every worker calls it with as many."""
    found = list[float]()
    for first in range(0, len(numbers), NUMBERS_A_TEXT):
        text = " ".join(f"{x:.9g}" for x in numbers[first : first + NUMBERS_A_TEXT])
        found += map(float, (agreement.first_text(text) or "").split())
    return found


def of_each_replica(numbers: Sequence[float], agreement: Agreement) -> list[float]:
    """Returns of each replica the number that its own worker has for it."""
    own = _own(len(numbers))
    texts = [agreement.first_text(f"{x:.9g}" if i in own else None) for i, x in enumerate(numbers)]
    return [float(text or "nan") for text in texts]


def later_elsewhere(alone: Sequence[float]) -> float:
    """Returns by how much the slowest of all replicas is later than the slowest of this process."""
    return max(alone, default=0.0) - max((alone[i] for i in _own(len(alone))), default=0.0)


def _own(replicas: int) -> range:
    """Returns which of all replicas are of this process."""
    membership = joined()
    if membership is None:
        return range(replicas)
    cluster = membership.cluster
    return range(replicas * cluster.index // cluster.size, replicas * (cluster.index + 1) // cluster.size)
