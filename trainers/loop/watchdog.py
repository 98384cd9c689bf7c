"""Watchdog: notices a section of the run without progress, such as an endless hook or a hanging file system.

Heartbeats between workers come from a separate thread, and continue while the main thread hangs. So the main thread
reports each section and its progress, and a watchdog thread checks these reports. The watchdog also learns the longest
normal pause of each section.
"""

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from core.signals import held_back
from trainers.options.deadlines import Limits

MOST_PAUSE = 10.0  # seconds between two checks


# Enters a section of the run, given its name and a description.
Section = Callable[[str, str], contextlib.AbstractContextManager[None]]
# A progress report, compared by identity: the section, and what it does.
Life = tuple[str, str]


class Hang(NamedTuple):
    """A pause of `section` that exceeded `limit` seconds; `what` describes the activity."""

    section: str
    what: str
    limit: float


class Watchdog:
    """Records the run's current section and progress; a thread checks both within `awake`."""

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self._clock = clock
        self._life: Life = ("set-up", "set-up")
        self._ended: set[Life] = set()
        self._asleep = threading.Event()

    def begin(self, section: str, what: str) -> None:
        """Records at little cost that a section begins; `section` is a key of `trainers.options.deadlines.LEAST`."""
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
