"""The parts of a step's time, in seconds."""

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
    bytes: int  # sent by each replica
    seconds: float

    @property
    def bandwidth(self) -> float | None:
        """Returns the collective's bytes per second, or None if its time is too short to measure."""
        return self.bytes / self.seconds if self.seconds else None


@dataclasses.dataclass(frozen=True)
class Measured:
    """Times of programs in seconds a step, without the call overhead, which is `launch`."""

    real: float  # a step with real input, wall time
    waited: float  # of it, waiting for data
    launch: float
    forward: float
    both: float  # forward and backward passes
    sent: Mapping[str, float]  # with the collectives of phases up to the named one
    whole: float
    alone: Sequence[float] = ()  # both passes of each replica alone


@dataclasses.dataclass(frozen=True)
class Times:
    """The time of one step in seconds, and its parts.

    `input wait` is time spent only waiting for data. `input beside the step` is the slow-down of steps while the same
    cores make examples. `skew` is the extra time of the slowest replica compared with a typical replica.
    """

    step: float  # wall time in training: with input, and the hooks' share
    synthetic: float  # on one batch in memory, without hooks
    parts: Mapping[str, float]
    hooks: Mapping[str, float]  # parts of `host work`, by the name of the hook's interval
    crossings: Sequence[Crossing] = ()
    alone: Sequence[float] = ()  # passes of each replica alone

    @property
    def shares(self) -> dict[str, float]:
        """Returns the parts as fractions of the step."""
        return {name: seconds / self.step for name, seconds in self.parts.items()}

    @property
    def real(self) -> float:
        """Returns the time of a step without hooks."""
        return self.step - sum(self.hooks.values())

    @property
    def explained(self) -> float:
        """Returns the sum of the parts as a fraction of the step."""
        return sum(self.parts.values()) / self.step

    def numbers(self) -> list[float]:
        """Returns all times as one list, which `with_numbers` reads."""
        crossings = [crossing.seconds for crossing in self.crossings]
        return [self.step, self.synthetic, *self.parts.values(), *self.hooks.values(), *crossings, *self.alone]

    def with_numbers(self, numbers: Sequence[float]) -> "Times":
        """Returns a copy with the times in `numbers`, a list like the result of `numbers()`."""
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
    """Splits a step's time, by comparing programs with and without each part. `bytes_of` is {phase: bytes sent}.

    A program can't be slower than one that does more: if noise suggests it, the part that only one has counts as 0 s.

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
    computing = 1.0 - (skew / both if both else 0.0)  # replicas idle while they wait for the slowest
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
