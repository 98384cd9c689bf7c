"""The verdict of a diagnosis: the bottleneck in one sentence with evidence, and remedies."""

import dataclasses
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from trainers.options.sizes import size
from trainers.performance.diagnose.times import BACKWARD, BESIDE, COLLECTIVES, FORWARD, HOST, SKEW, UPDATE, WAIT, Times
from trainers.settings import MAX_CHUNK_STEPS, Settings

WORTH = 1.05  # smaller speed-ups may be chance


@dataclasses.dataclass(frozen=True)
class Remedy:
    """One gin line, and what it changes: trainer settings, a hook's interval, or the devices."""

    line: str
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    hook: str = ""  # gin's name of the hook whose `every` changes
    every: int = 0
    devices: Sequence[str] = ()
    caution: str = ""  # side effects

    @property
    def interval(self) -> str:
        """Returns the name of the interval that the remedy changes, or an empty string."""
        name = self.line.partition(" = ")[0]
        return name if self.hook or name.endswith("_every") else ""


@dataclasses.dataclass(frozen=True)
class Tried:
    """The effect of a remedy, in examples per second."""

    remedy: Remedy
    before: float
    after: float

    @property
    def times_as_fast(self) -> float:
        return self.after / self.before

    @property
    def helps(self) -> bool:
        return self.times_as_fast >= WORTH


def setting(name: str, value: Any, caution: str = "") -> Remedy:
    """Returns the remedy that binds a setting of the trainer."""
    return Remedy(f"Trainer.{name} = {value!r}", {name: value}, caution=caution)


def devices(names: Sequence[str]) -> Remedy:
    """Returns the remedy that puts replicas only on these devices."""
    return Remedy(f"mirrored.devices = {list(names)}", devices=names)


def interval(name: str, steps: int) -> Remedy:
    """Returns the remedy that sets the interval `name`, as `Trainer.log_every` or `MyHook.every`, to `steps`."""
    owner, _, parameter = name.partition(".")
    if owner == "Trainer":
        return setting(parameter, steps)
    return Remedy(f"{name} = {steps}", hook=owner, every=steps)


NAMED_FROM = 0.2  # share of a step; less isn't a bottleneck
FIXED_FROM = 0.5  # share of a step independent of the batch; a larger batch changes training, so it must be worth it
MOST_CALLS = 32
DEAR = 0.05  # share of a step from which a hook is named
INPUT_BOUND, HOST_BOUND, COLLECTIVE_BOUND, STRAGGLER, BATCH_BOUND, NONE = (
    "input", "host", "collectives", "straggler", "batch", "none",
)  # fmt: skip
ANOTHER_TRAINING = "changes training: tune its learning rate again"


@dataclasses.dataclass(frozen=True)
class Verdict:
    """The bottleneck, as one word for programs and one sentence for people."""

    kind: str
    share: float  # of a step
    sentence: str
    remedies: Sequence[Remedy] = ()


@dataclasses.dataclass(frozen=True)
class Case:
    """The measurements and settings for a verdict."""

    times: Times
    settings: Settings
    chunk_steps: int
    source: str
    devices: Sequence[str]  # of the replicas
    mirrored: bool  # whether `mirrored.devices` can choose among them
    fixed: Callable[[], float]  # measures the share of the passes that doesn't depend on the batch size
    recomputes: bool = False  # whether `Experiment.recompute` is in effect

    def verdict(self) -> Verdict:
        """Names the largest part of a step other than computing, if that part is large enough to matter."""
        shares = self.times.shares
        candidates = {
            self._input_bound: shares[WAIT] + shares[BESIDE],
            self._host_bound: shares[HOST],
            self._collective_bound: shares[COLLECTIVES],
            self._straggler: shares[SKEW],
        }
        named, share = max(candidates.items(), key=lambda each: each[1])
        if share >= NAMED_FROM:
            return named(share)
        fixed = self.fixed() * (shares[FORWARD] + shares[BACKWARD]) + shares[UPDATE]
        if fixed >= FIXED_FROM:
            return self._batch_bound(fixed)
        computing = 1.0 - sum(candidates.values())
        others = [f"{percent(shares[WAIT] + shares[BESIDE])} input", f"{percent(shares[HOST])} the host's"]
        if len(self.devices) > 1:
            others.append(f"{percent(shares[COLLECTIVES] + shares[SKEW])} what replicas send and wait for each other")
        again = "; the backward pass includes the forward pass of `Experiment.recompute`" if self.recomputes else ""
        updating = f"{percent(shares[UPDATE])} the update{again}"
        says = f"no bottleneck: {percent(computing)} of each step is computing ({updating}), "
        return Verdict(NONE, computing, f"{says}{', '.join(others)}.")

    def _input_bound(self, share: float) -> Verdict:
        times = self.times
        waits = times.shares[WAIT] >= share / 2
        what = "waits for" if waits else "goes to the cores that make"
        says = f"input-bound: {percent(share)} of each step {what} examples of `{self.source}`"
        if not waits:
            cure = "steps and source share the cores, so a cheaper source is the cure"
            return Verdict(INPUT_BOUND, share, f"{says}: {cure}.")
        needed = self.settings.parallel_calls * math.ceil(1.2 * times.real / times.synthetic)
        calls = min(needed, MOST_CALLS)
        hide = "would hide it" if needed <= MOST_CALLS else f"would hide a part of it, {needed} all"
        says = f"{says}; {calls} parallel calls {hide}, if they don't wait for each other."
        return Verdict(INPUT_BOUND, share, says, [setting("parallel_calls", calls)])

    def _host_bound(self, share: float) -> Verdict:
        times, intervals = self.times, dict(self.settings.intervals)
        says = f"host-bound: {percent(share)} of each step is Python between the chunks of steps"
        if sum(times.hooks.values()) < times.parts[HOST] / 2:
            counts = range(1, MAX_CHUNK_STEPS + 1)
            longest = max(n for n in counts if all(every % n == 0 for every in intervals.values()))
            says += f", of {self.chunk_steps} each"
            if longest <= self.chunk_steps:
                return Verdict(HOST_BOUND, share, f"{says}: the steps are small for their number of calls.")
            return Verdict(
                HOST_BOUND, share, f"{says}; chunks of {longest} would do.", [setting("chunk_steps", longest)]
            )
        dear = {name: seconds for name, seconds in times.hooks.items() if seconds > DEAR * times.step}
        says += f": {', '.join(f'{percent(seconds / times.step)} by `{name}`' for name, seconds in _sorted(dear))}"
        rarer = {
            name: intervals[name] * _round_up(seconds / (DEAR * times.real))
            for name, seconds in _sorted(dear)
            if name in intervals
        }
        if not rarer:
            return Verdict(HOST_BOUND, share, f"{says}, once at the end: with more steps its share becomes smaller.")
        would = ", ".join(dict.fromkeys(f"each {every:,} steps" for every in rarer.values()))
        return Verdict(
            HOST_BOUND, share, f"{says}; {would} would do.", [interval(name, n) for name, n in rarer.items()]
        )

    def _collective_bound(self, share: float) -> Verdict:
        worst = max(self.times.crossings, key=lambda crossing: crossing.seconds)
        says = (
            f"collective-bound: {percent(share)} of each step is what {len(self.devices)} replicas send each other; in "
            f"`{worst.phase}` each hands in {size(worst.bytes)}, which gets through at {size(worst.bandwidth or 0)}/s."
        )
        remedies = [setting("global_batch_size", 4 * self.settings.global_batch_size, caution=ANOTHER_TRAINING)]
        if self.settings.reduce_gradients_in is None and not any("GPU" in device for device in self.devices):
            remedies.insert(0, setting("reduce_gradients_in", "bfloat16", caution="costs the last bits of gradients"))
        return Verdict(COLLECTIVE_BOUND, share, says, remedies)

    def _straggler(self, share: float) -> Verdict:
        alone = self.times.alone
        slowest = max(range(len(alone)), key=alone.__getitem__)
        says = (
            f"straggler: replica {slowest} on `{self.devices[slowest]}` takes {1000 * alone[slowest]:,.3g} ms alone "
            f"where a typical one takes {1000 * statistics.median_low(alone):,.3g}; for {percent(share)} of each step "
            "the others wait for it."
        )
        others = [device for i, device in enumerate(self.devices) if i != slowest]
        fits = self.settings.global_batch_size % (len(others) * self.settings.microbatches) == 0
        return Verdict(STRAGGLER, share, says, [devices(others)] if self.mirrored and fits else [])

    def _batch_bound(self, share: float) -> Verdict:
        count = self.settings.global_batch_size
        larger = min(16, max(4, _round_up(share / max(1.0 - share, 1e-9))))
        longer = 1.0 + (larger - 1) * (1.0 - share)
        says = (
            f"batch-bound: {percent(share)} of each step is the same for any number of examples, and {count} are few: "
            f"{larger} times as many would take about {longer:.1f} times as long."
        )
        return Verdict(BATCH_BOUND, share, says, [setting("global_batch_size", larger * count, ANOTHER_TRAINING)])


def percent(share: float) -> str:
    """Formats a fraction as percent."""
    return f"{100 * share:.0f} %"


def _sorted(seconds: Mapping[str, float]) -> list[tuple[str, float]]:
    """Returns the items, largest first."""
    return sorted(seconds.items(), key=lambda each: -each[1])


def _round_up(ratio: float) -> int:
    """Returns the smallest of 1, 2, 5, 10, 20, 50, ... that is at least `ratio`."""
    power = 10 ** max(0, math.floor(math.log10(max(ratio, 1.0))))
    return int(next(power * digit for digit in (1, 2, 5, 10) if power * digit >= ratio))
