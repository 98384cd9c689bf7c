"""The model fitted to what was measured on this machine, and its error against all that it was not fitted to."""

import statistics
from collections.abc import Iterator
from typing import NamedTuple

from benchmarks.simulate.fit import line
from benchmarks.simulate.measure import CHECKED, FITTED, UNEQUAL, Measured, Size, name
from benchmarks.simulate.model import Job, Link, Network, step_seconds

NOISE_SECONDS = 1e-4  # of a difference between two runs: what is below may as well be that


class Here(NamedTuple):
    """Two processes on this machine, as fitted."""

    link: Link
    spread: float

    @property
    def network(self) -> Network:
        """Returns as many processes, each a machine of its own with such a link to the others."""
        return Network(self.link, self.link)


class Check(NamedTuple):
    """Seconds of a step that were measured, and the model's."""

    what: str
    measured: float
    model: float

    @property
    def error(self) -> float:
        """Returns the model's error, as a part of what was measured."""
        return self.model / self.measured - 1


def seconds(measured: Measured, how: str, size: Size) -> float:
    """Returns the median over the rounds."""
    return statistics.median(measured["points"][name(how, size)])


def fitted(measured: Measured) -> Here:
    """Returns the link that what was sent for 1 product asks for: two messages of half the gradients."""
    spread = seconds(measured, "unequal", UNEQUAL)
    sent = [_talking(measured, size) for size in FITTED]
    fixed, each = line([size.gradients for size in FITTED], sent)
    return Here(Link(fixed / 2, 1 / each), spread)


def job(measured: Measured, size: Size) -> Job:
    """Returns what a worker does alone, beside another that is as busy."""
    return Job(seconds(measured, "apart", size), size.gradients, spread=seconds(measured, "unequal", UNEQUAL))


def checks(measured: Measured) -> Iterator[Check]:
    """Goes through all that the model wasn't fitted to."""
    here = fitted(measured)
    for size in CHECKED:
        what = f"2 replicas, {size.products} products, {size.gradients / 1e6:.2f} MB of gradients"
        model = step_seconds(job(measured, size), here.network, 2)
        yield Check(what, seconds(measured, "replicas", size), model)


def _talking(measured: Measured, size: Size) -> float:
    pairs = zip(measured["points"][name("replicas", size)], measured["points"][name("apart", size)], strict=True)
    return max(NOISE_SECONDS, statistics.median(together - apart for together, apart in pairs))
