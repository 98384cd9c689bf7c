"""What holds a step up, in one sentence with its evidence; and the gin lines that could help."""

import dataclasses
import math
from collections.abc import Mapping, Sequence

from trainers.diagnose.remedies import Remedy, interval, setting
from trainers.diagnose.times import BESIDE, COLLECTIVES, HOST, SKEW, UPDATE, WAIT, Times
from trainers.settings import MAX_CHUNK_STEPS, Settings

NAMED_FROM = 0.2  # of a step: less is no bottleneck
FIXED_FROM = 0.5  # of a step that is the same for any batch: a larger batch is another training, and must be worth it
MOST_CALLS = 32
DEAR = 0.05  # of a step, that a hook may take before it is named beside others
INPUT, HOST_BOUND, BATCH, NONE = "input", "host", "batch", "none"


@dataclasses.dataclass(frozen=True)
class Verdict:
    """What is wrong, as one word for programs and one sentence for people."""

    kind: str
    share: float  # of a step
    sentence: str
    remedies: Sequence[Remedy] = ()


def judge(times: Times, settings: Settings, *, chunk_steps: int, source: str, fixed: float) -> Verdict:
    """Names what takes most of a step beside computing, if that is much.

    `fixed` is what computing takes of a step, in seconds, whatever the size of the batch.
    """
    held_up = times.parts[WAIT] + times.parts[BESIDE]
    found = {INPUT: held_up, HOST_BOUND: times.parts[HOST]}
    kind, seconds = max(found.items(), key=lambda each: each[1])
    share = seconds / times.step
    if share >= NAMED_FROM:
        if kind == INPUT:
            return _input_bound(times, share, source)
        return _host_bound(times, share, settings, chunk_steps)
    if fixed / times.step >= FIXED_FROM:
        return _batch_bound(times, fixed, settings)
    computing = 1.0 - sum(times.shares[part] for part in (WAIT, BESIDE, HOST, COLLECTIVES, SKEW))
    return Verdict(
        NONE,
        computing,
        f"no bottleneck: {percent(computing)} of each step is computing ({percent(times.shares[UPDATE])} the update), "
        f"{percent(held_up / times.step)} input and {percent(times.shares[HOST])} the host's.",
    )


def _input_bound(times: Times, share: float, source: str) -> Verdict:
    waits = times.shares[WAIT] >= share / 2
    what = "waits for" if waits else "goes to the cores that make"
    needed = math.ceil(1.2 * times.step / times.synthetic)
    says = f"input-bound: {percent(share)} of each step {what} examples of `{source}`"
    if not waits:
        return Verdict(INPUT, share, f"{says}: steps and source share the cores, so a cheaper source is the cure.")
    calls = min(needed, MOST_CALLS)
    hide = "would hide it" if needed <= MOST_CALLS else f"would hide a part of it, {needed} all"
    return Verdict(INPUT, share, f"{says}; {calls} parallel calls {hide}.", [setting("parallel_calls", calls)])


def _host_bound(times: Times, share: float, settings: Settings, chunk_steps: int) -> Verdict:
    says = f"host-bound: {percent(share)} of each step is Python between the chunks of steps"
    intervals = dict(settings.intervals)
    if sum(times.hooks.values()) < times.parts[HOST] / 2:
        longest = max(n for n in range(1, MAX_CHUNK_STEPS + 1) if all(every % n == 0 for every in intervals.values()))
        says += f", of {chunk_steps} each"
        if longest <= chunk_steps:
            return Verdict(HOST_BOUND, share, f"{says}: the steps are small for their number of calls.")
        return Verdict(HOST_BOUND, share, f"{says}; chunks of {longest} would do.", [setting("chunk_steps", longest)])
    rest = times.step - sum(times.hooks.values())
    dear = {name: seconds for name, seconds in times.hooks.items() if seconds > DEAR * times.step}
    what = [f"{percent(seconds / times.step)} by `{name}`" for name, seconds in _largest_first(dear)]
    says += f": {', '.join(what)}"
    rarer = {
        name: intervals[name] * _round_up(seconds / (DEAR * rest))
        for name, seconds in _largest_first(dear)
        if name in intervals
    }
    if not rarer:
        return Verdict(HOST_BOUND, share, f"{says}, once at the end: with more steps its share becomes smaller.")
    would = ", ".join(f"each {every:,} steps" for every in rarer.values())
    return Verdict(HOST_BOUND, share, f"{says}; {would} would do.", [interval(name, n) for name, n in rarer.items()])


def _largest_first(seconds: Mapping[str, float]) -> list[tuple[str, float]]:
    return sorted(seconds.items(), key=lambda each: -each[1])


def _batch_bound(times: Times, fixed: float, settings: Settings) -> Verdict:
    share, size = fixed / times.step, settings.global_batch_size
    times_larger = min(16, max(4, _round_up(fixed / max(times.step - fixed, 1e-9))))
    longer = 1.0 + (times_larger - 1) * (1.0 - share)
    return Verdict(
        BATCH,
        share,
        f"batch-bound: {percent(share)} of each step is the same for any number of examples, and {size} are few: "
        f"{times_larger} times as many would take about {longer:.1f} times as long.",
        [setting("global_batch_size", times_larger * size, caution="another training: its rate has to be found anew")],
    )


def _round_up(ratio: float) -> int:
    """Returns 1, 2, 5, 10, 20, 50 ..., the first that is no less."""
    power = 10 ** max(0, math.floor(math.log10(max(ratio, 1.0))))
    return int(next(power * digit for digit in (1, 2, 5, 10) if power * digit >= ratio))


def percent(share: float) -> str:
    """Returns a fraction as people say it."""
    return f"{100 * share:.0f} %"
