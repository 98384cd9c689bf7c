"""Where the time of a step goes, as seconds by part."""

import dataclasses
from collections.abc import Mapping

WAIT, BESIDE, HOST = "input wait", "input beside the step", "host work"
FORWARD, BACKWARD, UPDATE = "forward", "backward", "update"
COLLECTIVES, SKEW = "collectives", "skew"
PARTS = (WAIT, BESIDE, HOST, FORWARD, BACKWARD, COLLECTIVES, SKEW, UPDATE)


@dataclasses.dataclass(frozen=True)
class Times:
    """What one step takes, in seconds, and its parts.

    `input wait` is time in which nothing else happens; `input beside the step` is by how much steps are slower because
    examples are made on the same cores.
    """

    step: float  # as in training, by the clock: with input, and hooks by their share
    synthetic: float  # on one batch that is there already, without hooks
    parts: Mapping[str, float]
    hooks: Mapping[str, float]  # of `host work`, by the name of the interval that each has
    fetched: float = 0.0  # what it takes to make the step's examples, where that is what steps wait for

    @property
    def shares(self) -> dict[str, float]:
        """Returns the parts as fractions of the step."""
        return {name: seconds / self.step for name, seconds in self.parts.items()}

    @property
    def explained(self) -> float:
        """Returns which fraction of the step its parts add up to."""
        return sum(self.parts.values()) / self.step


def split(
    *,
    real: float,
    waited: float,
    launch: float,
    forward: float,
    both: float,
    sent: float,
    whole: float,
    skew: float = 0.0,
    hooks: Mapping[str, float] = {},
) -> Times:
    """Takes apart what was measured, all of it in seconds a step.

    `real` is a step with real input, of which the loop `waited` for data; `launch` what a call of no steps takes. The
    others are steps of programs, `launch` not counted: `forward`, `both` passes, with all that is `sent`, the `whole`.
    """
    synthetic = launch + whole
    held_up = max(real - synthetic, 0.0)
    wait = min(waited, held_up)
    skew = min(skew, both)
    computing = 1.0 - (skew / both if both else 0.0)  # replicas that wait for the slowest don't compute
    parts = {
        WAIT: wait,
        BESIDE: held_up - wait,
        HOST: launch + sum(hooks.values()),
        FORWARD: min(forward, both) * computing,
        BACKWARD: max(both - forward, 0.0) * computing,
        COLLECTIVES: max(sent - both, 0.0),
        SKEW: skew,
        UPDATE: max(whole - sent, 0.0),
    }
    return Times(real + sum(hooks.values()), synthetic, parts, hooks)
