"""Proposes values to try: a generator for each setting, which receives whether each value was faster."""

import dataclasses
import json
import math
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any

from core.task import EVERY_REPLICA, ONE_DEVICE, Placement
from trainers.options.compile import OFF, XLA
from trainers.settings import MAX_CHUNK_BYTES, Settings

PLACEMENTS = "placements"


@dataclasses.dataclass(frozen=True)
class Change:
    """Another value of a setting of the trainer, or of the experiment's `placements`."""

    setting: str
    value: Any

    @property
    def shown(self) -> str:
        """Returns the value in gin syntax."""
        return _shown(self.value)

    @property
    def line(self) -> str:
        """Returns the change as a gin line."""
        owner = "Experiment" if self.setting == PLACEMENTS else "Trainer"
        return f"{owner}.{self.setting} = {self.shown}"


@dataclasses.dataclass(frozen=True)
class NotTried:
    """A value that isn't tried, with the reason."""

    setting: str
    shown: str
    why: str


@dataclasses.dataclass(frozen=True)
class Choice:
    """The changes chosen so far, by setting."""

    changes: Mapping[str, Change] = dataclasses.field(default_factory=dict)

    def with_change(self, change: Change) -> "Choice":
        """Returns a copy with `change`, in place of an earlier change of the same setting."""
        return Choice({**self.changes, change.setting: change})

    @property
    def settings(self) -> dict[str, Any]:
        """Returns the changed settings of the trainer."""
        return {name: change.value for name, change in self.changes.items() if name != PLACEMENTS}

    @property
    def placements(self) -> Mapping[str, Placement] | None:
        """Returns the experiment's new placements, or None if they don't change."""
        return self.changes[PLACEMENTS].value if PLACEMENTS in self.changes else None

    @property
    def lines(self) -> list[str]:
        """Returns the gin lines, ready to paste."""
        return [change.line for change in self.changes.values()]


def _shown(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_shown(key)}: {_shown(x)}" for key, x in value.items()) + "}"
    if isinstance(value, Placement):
        return "@on_one_device()" if value == ONE_DEVICE else "@on_every_replica()"
    return json.dumps(value) if isinstance(value, str) else repr(value)


Proposals = Generator[Change | NotTried, bool, None]

CHUNKS = (10, 50, 100)  # approximate steps of a chunk
LONG_SECONDS = 0.1  # of a chunk; the cost of a call is then negligible
MOST_CALLS = 16
WAITS, HIDES = 0.03, 0.2  # share of time waiting: above the first a source is slow, above the second it is tried first


@dataclasses.dataclass(frozen=True)
class Case:
    """The basis of proposals: the fastest settings so far, and their measurements."""

    settings: Settings
    chunk_steps: int
    step_bytes: int  # bytes of a step's batch
    replicas: int
    how: str  # describes the strategy
    compiled: bool  # whether XLA can compile anything
    updates: Sequence[str]  # the names of the phases that train
    mixing: Sequence[str]  # phases that mix the rows of a microbatch
    placements: Mapping[str, Placement]  # of all phases that may be moved
    placed: Mapping[str, Placement]  # the experiment's overrides of the task's placements
    cut: bool  # chunks are shortened to limit the time of a trial
    seconds: float  # a step
    waits: float  # share of it waiting for data


def compiles(case: Case) -> Proposals:
    """Proposes to compile nothing, then everything, then one update after another. It keeps those that helped."""
    if not case.compiled:
        yield NotTried("compile", "any", f"{case.how} XLA compiles nothing")
        return
    for word in (OFF, XLA):
        if word != case.settings.compile:
            yield Change("compile", word)
    chosen = dict[str, str]()
    # With several replicas, the only update is all there is to compile.
    for name in case.updates if case.replicas == 1 or len(case.updates) > 1 else ():
        other = {**chosen, name: XLA}
        if other != case.settings.compile and (yield Change("compile", other)):
            chosen = other


def chunks(case: Case) -> Proposals:
    """Proposes other lengths of a chunk, if the intervals allow them."""
    if case.cut or case.chunk_steps * case.seconds > LONG_SECONDS:
        takes = 1000 * case.chunk_steps * case.seconds
        why = f"{case.chunk_steps} steps take {takes:,.0f} ms, beside which the call that takes them costs nothing"
        yield NotTried("chunk_steps", "any", why)
        return
    unit = case.settings.round_steps
    common = math.gcd(*(every for _, every in case.settings.intervals))  # 0 if there are none
    allowed = [n for n in range(unit, max(CHUNKS) + 1, unit) if common % n == 0]
    lengths = {max((n for n in allowed if n <= most), default=case.chunk_steps) for most in CHUNKS}
    for steps in sorted(lengths - {case.chunk_steps}):
        if steps * case.step_bytes <= MAX_CHUNK_BYTES:
            yield Change("chunk_steps", steps)


def microbatches(case: Case) -> Proposals:
    """Proposes to halve the number of microbatches as long as that helps, or else to double the number."""
    now, size = case.settings.microbatches, case.settings.global_batch_size
    if case.mixing:
        why = f"phase `{case.mixing[0]}` mixes the rows of a microbatch: with others it would be another loss"
        yield NotTried("microbatches", "any", why)
        return
    if case.settings.memory_budget is not None:
        yield NotTried("microbatches", "any", "`Trainer.memory_budget` chooses them")
        return
    fewer = now
    while fewer % 2 == 0 and (yield Change("microbatches", fewer // 2)):
        fewer //= 2
    more = now
    while fewer == now and size % (2 * more * case.replicas) == 0 and (yield Change("microbatches", 2 * more)):
        more *= 2


def places(case: Case) -> Proposals:
    """Proposes one device for each phase that runs on every replica, and vice versa."""
    if case.replicas == 1:
        return
    size = case.settings.global_batch_size
    chosen = {name: _as_it_is(placement, size) for name, placement in case.placed.items()}
    for name, placement in case.placements.items():
        other = {**chosen, name: ONE_DEVICE if placement.on_every_replica(size) else EVERY_REPLICA}
        if (yield Change(PLACEMENTS, other)):
            chosen = other


def calls(case: Case) -> Proposals:
    """If steps wait for data, proposes to double `Trainer.parallel_calls` as long as that helps."""
    if case.waits < WAITS:
        yield NotTried("parallel_calls", "any", f"steps wait for data in {100 * case.waits:.1f} % of the time")
        return
    more = 2 * case.settings.parallel_calls
    while more <= MOST_CALLS and (yield Change("parallel_calls", more)):
        more *= 2


def calls_first(case: Case) -> Proposals:
    """Proposes the values of `calls` before other settings, if waiting for data takes much of a step."""
    if case.waits >= HIDES:
        yield from calls(case)


def _as_it_is(placement: Placement, global_batch_size: int) -> Placement:
    """Returns the placement of a batch of this size: on every replica, or on one device."""
    return EVERY_REPLICA if placement.on_every_replica(global_batch_size) else ONE_DEVICE


ORDER: Sequence[Callable[[Case], Proposals]] = (calls_first, compiles, chunks, microbatches, places, calls)
