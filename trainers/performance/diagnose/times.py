"""Where the time of a step goes, as seconds by part."""

import dataclasses
import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple

WAIT, BESIDE, HOST = "input wait", "input beside the step", "host work"
FORWARD, BACKWARD, UPDATE = "forward", "backward", "update"
COLLECTIVES, SKEW = "collectives", "skew"
PARTS = (WAIT, BESIDE, HOST, FORWARD, BACKWARD, COLLECTIVES, SKEW, UPDATE)


class Crossing(NamedTuple):
    """The collectives of one phase in a step."""

    phase: str
    bytes: int  # that each replica hands in
    seconds: float

    @property
    def bandwidth(self) -> float | None:
        """Returns the bytes a second at which what a replica hands in gets through, if it takes a time that shows."""
        return self.bytes / self.seconds if self.seconds else None


@dataclasses.dataclass(frozen=True)
class Measured:
    """Times of programs, all in seconds a step; but for `launch`, without what a call of no steps takes."""

    real: float  # a step with real input, by the clock
    waited: float  # of it, for data
    launch: float
    forward: float
    both: float  # passes, forward and backward
    sent: Mapping[str, float]  # with what is sent in phases up to the one named
    whole: float
    alone: Sequence[float] = ()  # both passes of each replica by itself


@dataclasses.dataclass(frozen=True)
class Times:
    """What one step takes, in seconds, and its parts.

    `input wait` is time in which nothing else happens; `input beside the step` is by how much steps are slower because
    examples are made on the same cores. `skew` is how much longer the slowest replica takes than a typical one.
    """

    step: float  # as in training, by the clock: with input, and hooks by their share
    synthetic: float  # on one batch that is there already, without hooks
    parts: Mapping[str, float]
    hooks: Mapping[str, float]  # of `host work`, by the name of the interval that each has
    crossings: Sequence[Crossing] = ()
    alone: Sequence[float] = ()  # passes of each replica by itself

    @property
    def shares(self) -> dict[str, float]:
        """Returns the parts as fractions of the step."""
        return {name: seconds / self.step for name, seconds in self.parts.items()}

    @property
    def real(self) -> float:
        """Returns what a step takes without hooks."""
        return self.step - sum(self.hooks.values())

    @property
    def explained(self) -> float:
        """Returns which fraction of the step its parts add up to."""
        return sum(self.parts.values()) / self.step

    def numbers(self) -> list[float]:
        """Returns all of them in a row."""
        crossings = [crossing.seconds for crossing in self.crossings]
        return [self.step, self.synthetic, *self.parts.values(), *self.hooks.values(), *crossings, *self.alone]

    def with_numbers(self, numbers: Sequence[float]) -> "Times":
        """Returns the same times with others of these."""
        rest = iter(numbers)
        return Times(
            next(rest),
            next(rest),
            {name: next(rest) for name in self.parts},
            {name: next(rest) for name in self.hooks},
            [crossing._replace(seconds=next(rest)) for crossing in self.crossings],
            list(rest),
        )


def split(found: Measured, bytes_of: Mapping[str, int], hooks: Mapping[str, float] = {}) -> Times:
    """Takes a step apart by what is faster without each part; phases hand in so many `bytes_of` each.

    No program can be slower than one that does more: where a noisy machine says so, the part that they differ by took
    no time.

    >>> found = Measured(real=9.0, waited=1.0, launch=0.5, forward=2.0, both=4.0, sent={"net": 5.0}, whole=6.0)
    >>> times = split(found, {"net": 1000})
    >>> [times.parts[name] for name in PARTS], times.explained
    ([1.0, 1.5, 0.5, 2.0, 2.0, 1.0, 0.0, 1.0], 1.0)
    """
    both, forward = min(found.both, found.whole), min(found.forward, found.both, found.whole)
    synthetic = found.launch + found.whole
    held_up = max(found.real - synthetic, 0.0)
    wait = min(found.waited, held_up)
    crossings, so_far = list[Crossing](), both
    for phase, seconds in found.sent.items():
        reached = min(max(seconds, so_far), found.whole)
        crossings.append(Crossing(phase, bytes_of[phase], reached - so_far))
        so_far = reached
    skew = min(max(found.alone) - statistics.median_low(found.alone), both) if found.alone else 0.0
    computing = 1.0 - (skew / both if both else 0.0)  # replicas that wait for the slowest don't compute
    parts = {
        WAIT: wait,
        BESIDE: held_up - wait,
        HOST: found.launch + sum(hooks.values()),
        FORWARD: forward * computing,
        BACKWARD: (both - forward) * computing,
        COLLECTIVES: so_far - both,
        SKEW: skew,
        UPDATE: found.whole - so_far,
    }
    return Times(found.real + sum(hooks.values()), synthetic, parts, hooks, crossings, found.alone)
