"""The model fitted to measurements of this machine, and its errors on all the others."""

import dataclasses
import statistics
from collections.abc import Iterator
from typing import NamedTuple

from benchmarks.running import WIDTH
from benchmarks.simulate.check import Check
from benchmarks.simulate.fit import line
from benchmarks.simulate.measure import CHECKED, CUT, FITTED, PUSHED, ROWS, UNEQUAL, Measured, Size, name
from benchmarks.simulate.model import Job, Link, Network, Servers, slowest, step_seconds

NOISE_SECONDS = 1e-4  # of a difference between two runs: smaller ones are noise


class Here(NamedTuple):
    """Two processes on this machine, as fitted."""

    link: Link
    spread: float
    product: float  # seconds, while the other process is as busy

    @property
    def network(self) -> Network:
        """Returns a network of as many processes, each on a separate machine, joined by a link like the fitted one."""
        return Network(self.link, self.link)


def seconds(measured: Measured, how: str, size: Size) -> float:
    """Returns the median over the rounds."""
    return statistics.median(measured["points"][name(how, size)])


def fitted(measured: Measured) -> Here:
    """Returns the link, fitted to the runs with 1 product: two messages of half the gradients."""
    spread = seconds(measured, "unequal", UNEQUAL)
    sent = [_talking(measured, size) for size in FITTED]
    fixed, each = line([size.gradients for size in FITTED], sent)
    return Here(Link(fixed / 2, 1 / each), spread, seconds(measured, "apart", UNEQUAL) / UNEQUAL.products)


def job(measured: Measured, size: Size) -> Job:
    """Returns one worker's job while another keeps its cores as busy."""
    return Job(seconds(measured, "apart", size), size.gradients, spread=seconds(measured, "unequal", UNEQUAL))


def cut(measured: Measured, size: Size) -> Job:
    """Returns the job of two workers that take the same rows and shard the matrix by its rows.

    The collective log lists a sum of each product in the forward pass, and half as much in the backward pass.
    """
    whole = job(measured, size)
    sent = 4 * ROWS * WIDTH
    return dataclasses.replace(
        whole, compute=whole.compute / 2, cut=2, sums=2 * size.products, activations=(sent + sent / 2) / 2
    )


def mesh_network(measured: Measured) -> Network:
    """Returns the mesh's network; its shortest steps give the latency of DTensor's sums."""
    fastest, link = CUT[0], fitted(measured).link
    whole = cut(measured, fastest)
    waited = seconds(measured, "mesh", fastest) - whole.compute * slowest(2, whole.spread)
    latency = max(0.0, waited / whole.sums / 2 - whole.activations / 2 / link.bandwidth)
    return Network(Link(latency, link.bandwidth), link, per_machine=2)


def servers(measured: Measured) -> Servers:
    """Returns the time that a pull and a push add to a step, and the shortest interval between steps."""
    exchange = seconds(measured, "one asynchronous", PUSHED) - seconds(measured, "apart", PUSHED)
    return Servers(max(0.0, exchange), locked=min(max(0.0, exchange), seconds(measured, "two asynchronous", PUSHED)))


def checks(measured: Measured) -> Iterator[Check]:
    """Compares all runs that the model wasn't fitted to, in milliseconds a step."""
    network = fitted(measured).network
    for size in CHECKED:
        what = f"2 replicas, {size.products} products, {size.gradients / 1e6:.2f} MB of gradients: ms a step"
        model = step_seconds(job(measured, size), network, 2)
        yield Check(what, 1e3 * seconds(measured, "replicas", size), 1e3 * model)
    for size in CUT[1:]:
        what = f"mesh of 1x2, {size.products} products: ms a step"
        model = step_seconds(cut(measured, size), mesh_network(measured), 2)
        yield Check(what, 1e3 * seconds(measured, "mesh", size), 1e3 * model)


def _talking(measured: Measured, size: Size) -> float:
    pairs = zip(measured["points"][name("replicas", size)], measured["points"][name("apart", size)], strict=True)
    return max(NOISE_SECONDS, statistics.median(together - apart for together, apart in pairs))
