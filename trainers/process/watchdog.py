"""Watchdog: ends the process if a section of the run hangs, such as an endless hook or a hanging file system.

Heartbeats between workers come from a separate thread, and continue while the main thread hangs. So the main thread
reports each section and its progress, and a watchdog thread checks these reports. The watchdog also learns the longest
normal pause of each section.
"""

import contextlib
import dataclasses
import faulthandler
import functools
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from core.arguments import listed
from core.checkpoint import Saves
from core.cluster import joined
from core.errors import ConfigurationError, PeerLostError, did_you_mean, shown
from core.signals import held_back
from trainers.process.standard_streams import log_name
from trainers.workdir import Workdir

MOST_PAUSE = 10.0  # seconds between two checks
LAST_WORDS_SECONDS = 5.0  # time to print, record and tell other workers before the exit
TIMES = 10.0  # times the longest pause so far
LEAST = {  # lower bounds in seconds: compiling, a disk or a network may be slow once
    "set-up": 3600.0,
    "tracing": 3600.0,
    "data": 900.0,
    "step": 900.0,
    "evaluation": 900.0,
    "hook": 900.0,
    "save": 1800.0,
}
# Enters a section of the run, given its name and a description.
Section = Callable[[str, str], contextlib.AbstractContextManager[None]]
# A progress report, compared by identity: the section, and what it does.
Life = tuple[str, str]
WriteResult = Callable[..., None]  # with `exit_code` and `reason`


@dataclasses.dataclass(frozen=True)
class Limits:
    """Deadlines in seconds; None means never.

    `general` is the deadline of a section that hasn't yet ended once in this run; later deadlines may be shorter, but
    not longer. Set-up has at least an hour, because it may read much data. `given`, {section: deadline}, overrides
    all other deadlines.
    """

    general: float | None = 3600.0  # no reasonable tracing, save or chunk of evaluation takes an hour
    given: Mapping[str, float | None] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        _check_time("Trainer.section_deadline", self.general)
        if not isinstance(self.given, Mapping):
            raise ConfigurationError(
                f"`Trainer.section_deadlines` is {shown(self.given)}; give a dictionary from sections to seconds, such "
                "as {'evaluation': 600}."
            )
        for section, seconds in self.given.items():
            if section not in LEAST:
                raise ConfigurationError(
                    f"`Trainer.section_deadlines` names the section {shown(section)}; the sections of a run are "
                    f"{listed(LEAST)}.{did_you_mean(str(section), LEAST)}"
                )
            _check_time(f"Trainer.section_deadlines['{section}']", seconds)

    def of(self, section: str, longest: float | None) -> float | None:
        """Returns the deadline of a section, given its `longest` pause so far, if known."""
        if section in self.given:
            return self.given[section]
        if self.general is None or longest is None:
            return self.general and max(self.general, LEAST[section] if section == "set-up" else 0.0)
        return min(self.general, max(LEAST[section], TIMES * longest))

    def reason(self, section: str, limit: float) -> str:
        """Returns the reason for the deadline `limit` of a section, as text for an error."""
        if section in self.given:
            return f"`Trainer.section_deadlines['{section}']`"
        if limit == self.general:
            return "`Trainer.section_deadline`"
        if section == "set-up":
            return "no set-up should take that"
        return f"{TIMES:g} times its longest pause so far, at least {LEAST[section]:g} s"

    @property
    def shortest(self) -> float | None:
        """Returns the shortest possible deadline; None if there is none."""
        found = [self.of(section, 0.0) for section in LEAST]
        return min((limit for limit in found if limit is not None), default=None)


def _check_time(name: str, seconds: object) -> None:
    if seconds is None:
        return
    if not isinstance(seconds, float | int) or isinstance(seconds, bool) or not 0 < seconds < math.inf:
        raise ConfigurationError(
            f"`{name}` is {shown(seconds)}; it is a time in seconds: give a number above 0, or None for no deadline."
        )


class Hang(NamedTuple):
    """A pause of `section` that is longer than `limit` seconds. `what` describes the activity."""

    section: str
    what: str
    limit: float


class Watchdog:
    """Records the run's section and progress; within `with watchdog.awake(...)`, a thread checks their deadlines."""

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self._clock = clock
        self._life: Life = ("set-up", "set-up")
        self._ended: set[Life] = set()
        self._asleep = threading.Event()

    def begin(self, section: str, what: str) -> None:
        """Records at little cost that a section begins. `section` is a key of `trainers.process.watchdog.LEAST`."""
        self._ended.add(self._life)
        self._life = (section, what)

    @contextlib.contextmanager
    def section(self, section: str, what: str) -> Iterator[None]:
        """Records that a section begins, and at the block's end that the outer section resumes.

        If the block raises an error, the section stays the current one for the rest of the process.
        """
        outer = self._life
        self.begin(section, what)
        yield
        self._ended.add(self._life)
        self._life = (outer[0], outer[1])  # a new progress report

    def alive(self) -> None:
        """Records progress of the current section."""
        section, what = self._life
        self._life = (section, what)

    @property
    def doing(self) -> str:
        """Describes the current activity."""
        return self._life[1]

    @contextlib.contextmanager
    def awake(
        self,
        limits: Limits,
        on_hang: Callable[[Hang], None],
        *,
        beside: Sequence[Callable[[], Life | None]] = (),
        is_waiting: Callable[[], bool] = lambda: False,
    ) -> Iterator[None]:
        """Calls `on_hang` once, in a thread, with a section that has shown no progress for too long.

        Each function of `beside` returns another thread's last progress report, or None if that thread is idle. While
        `is_waiting()` is true, this process waits for another one, and limits ignore the learnt pauses.
        """
        shortest = limits.shortest
        if shortest is None:
            yield
            return
        self._asleep.clear()
        longest = _Longest(self._ended)
        silences = [_Silence(look, longest) for look in (lambda: self._life, *beside)]
        arguments = (min(MOST_PAUSE, shortest / 8), silences, limits, on_hang, is_waiting)
        watch = threading.Thread(target=self._watch, args=arguments, daemon=True, name="watchdog")
        with held_back(
            signal.SIGTERM
        ):  # for this thread's whole life: TensorFlow would take the signal while it connects
            watch.start()
        try:
            yield
        finally:
            self._asleep.set()

    def _watch(
        self,
        pause: float,
        silences: "Sequence[_Silence]",
        limits: Limits,
        on_hang: Callable[[Hang], None],
        is_waiting: Callable[[], bool],
    ) -> None:
        looked = self._clock()
        while not self._asleep.wait(pause):
            now = self._clock()
            # If this thread itself was late, the process was stopped or starved, or the machine slept.
            late, looked = now - looked > 2 * pause, now
            for silence in silences:
                if (found := silence.look(now, late=late)) is None:
                    continue
                (section, what), seconds, longest = found
                limit = limits.of(section, None if is_waiting() else longest)
                if limit is not None and seconds > limit:
                    on_hang(Hang(section, what, limit))
                    return


class _Longest:
    """The longest pause of each section, and of each hook."""

    def __init__(self, ended: set[Life]):
        self._ended, self._seconds = ended, dict[str, float]()

    def note(self, life: Life, seconds: float) -> None:
        """Records the length of a pause that has ended."""
        learner = _learner(life)
        self._seconds[learner] = max(self._seconds.get(learner, 0.0), seconds)

    def of(self, life: Life) -> float | None:
        """Returns the longest pause in seconds; None if the section has never ended, 0 if no check has seen it."""
        learner = _learner(life)
        unseen = 0.0 if any(_learner(each) == learner for each in self._ended.copy()) else None
        return self._seconds.get(learner, unseen)


def _learner(life: Life) -> str:
    section, what = life
    return what if section == "hook" else section


class _Silence:
    """The time since a thread's last progress."""

    def __init__(self, last_sign: Callable[[], Life | None], longest: _Longest):
        self._last_sign, self._longest = last_sign, longest
        self._seen: Life | None = None
        self._since = 0.0

    def look(self, now: float, *, late: bool) -> tuple[Life, float, float | None] | None:
        """Returns the last progress report, its age in seconds, and its section's longest pause; None if idle."""
        life = self._last_sign()
        if life is not self._seen or late:
            if self._seen and not late:
                self._longest.note(self._seen, now - self._since)
            self._seen, self._since = life, now
        return (life, now - self._since, self._longest.of(life)) if life else None


def ending_where_set_up_hangs(
    workdir: Workdir, limits: Limits, write_result: WriteResult | None = None
) -> contextlib.AbstractContextManager[None]:
    """Within the block, ends the process if setting up the trainer takes too long."""
    watchdog = Watchdog()
    return watchdog.awake(limits, Ending(watchdog, limits, workdir, write_result=write_result))


@dataclasses.dataclass(frozen=True)
class Ending:
    """Ends the process from the watchdog's thread, because a hanging thread may not react to anything."""

    watchdog: Watchdog
    limits: Limits
    workdir: Workdir
    write_result: WriteResult | None = None
    after: Callable[[], str] = lambda: ""

    def __call__(self, hang: Hang) -> None:
        """Reports and records what hangs, tells the other workers, and ends the process."""
        stacks = log_name().replace("native_stderr", "stacks").replace(".log", ".txt")
        others = "".join(f", while {name} was at {doing}" for name, doing in self.others().items())
        error = PeerLostError(
            f"{hang.what} has shown no progress for {hang.limit:g} s ({self.limits.reason(hang.section, hang.limit)})"
            f"{self.after()}{others}: the stacks above show where it hangs, and so does "
            f"`{self.workdir.named / stacks}`. Run the same command again to resume from the last "
            "checkpoint; if it was only slow, give it longer, as "
            f"`Trainer.section_deadlines = {{'{hang.section}': {2 * hang.limit:g}}}`."
        )

        def message() -> None:
            faulthandler.dump_traceback(all_threads=True)
            print(f"error: {error}", file=sys.stderr, flush=True)

        words: list[Callable[..., object]] = [
            message,
            functools.partial(write_stacks, self.workdir.path / stacks, str(error)),
        ]
        if self.write_result:
            words.append(functools.partial(self.write_result, exit_code=error.exit_code, reason=str(error)))
        if membership := joined():
            words.append(functools.partial(membership.leave, f"{hang.what} hung"))
        # The terminal, file system or network may be what hangs: this thread waits for none of them.
        threads = [threading.Thread(target=word, daemon=True) for word in words]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(LAST_WORDS_SECONDS)
        os._exit(error.exit_code)

    def others(self) -> dict[str, str]:
        """Returns {worker: activity} of workers with another activity than this one. This worker may wait for them."""
        membership = joined()
        return membership.elsewhere(self.watchdog.doing) if membership else {}


def signs_of_writer(saves: Saves) -> Callable[[], Life | None]:
    """Returns a function that returns a new `Life` for each checkpoint being written, or None if none is."""
    what = "writing a checkpoint"
    seen: object = None
    sign: Life = ("save", what)

    def last_sign() -> Life | None:
        nonlocal seen, sign
        save = saves.under_way
        if save is not seen:
            seen, sign = save, ("save", what)
        return sign if save is not None else None

    return last_sign


def write_stacks(path: Path, heading: str) -> None:
    """Writes to `path` the stack of each Python thread, and the kernel function in which each thread waits."""
    with contextlib.suppress(OSError), path.open("w") as file:  # the disk may be what hangs
        print(heading, file=file, flush=True)
        faulthandler.dump_traceback(file, all_threads=True)
        print("\nAll threads, including TensorFlow's: number, name, state, and where in the kernel.", file=file)
        for task in sorted(Path("/proc/self/task").glob("*")):
            with contextlib.suppress(OSError):  # it has ended, or the system doesn't show it
                name, state = (task / "stat").read_text().split("(", 1)[1].rsplit(")", 1)
                print(task.name, name, state.split()[0], (task / "wchan").read_text(), file=file)
