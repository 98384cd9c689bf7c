"""Notices a section of the run that shows no life: a hook in an endless loop, a file system that never answers.

Heartbeats between workers come from a thread, and go on while the main thread hangs; the scheduler sees a process that
runs. So the main thread says what it begins, and each time that it gets ahead, and a thread of its own looks whether it
still does. It learns meanwhile how long each section is silent when all is well.
"""

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from core.signals import held_back
from trainers.options.deadlines import Limits

MOST_PAUSE = 10.0  # seconds between two looks


# Enters a section of the run by its name and what it does.
Section = Callable[[str, str], contextlib.AbstractContextManager[None]]
# A sign of life, told apart from others by identity: the section that it comes from, and what that does.
Life = tuple[str, str]


class Hang(NamedTuple):
    """A silence that was too long."""

    section: str
    what: str
    limit: float


class Watchdog:
    """Is told which section begins, and how it goes on. Until it is woken, that is all."""

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self._clock = clock
        self._life: Life = ("set-up", "set-up")
        self._ended: set[Life] = set()
        self._asleep = threading.Event()

    def begin(self, section: str, what: str) -> None:
        """Notes that a section of `trainers.options.deadlines.LEAST` begins, as cheaply as can be."""
        self._ended.add(self._life)
        self._life = (section, what)

    @contextlib.contextmanager
    def section(self, section: str, what: str) -> Iterator[None]:
        """Notes that a section begins, and at its end that the one around it resumes.

        An error leaves the section as it is: all that the process does on its way out counts as part of it.
        """
        outer = self._life
        self.begin(section, what)
        yield
        self._ended.add(self._life)
        self._life = (outer[0], outer[1])  # a new sign of life

    def alive(self) -> None:
        """Notes that the section gets ahead."""
        section, what = self._life
        self._life = (section, what)

    @property
    def doing(self) -> str:
        """Says what is going on."""
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
        """Calls `on_hang` once, in a thread, with the section that has shown no life for too long.

        `beside` return the last signs of life of other threads, while these are at work. What is learnt doesn't count
        for who `is_waiting` for another process.
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
        with held_back(signal.SIGTERM):  # by this thread for good: TensorFlow, while it connects, would have it
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
            # Where this thread itself was late, the process was stopped, or starved, or the machine slept.
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
    """The longest silence of each section; of hooks, of each of them."""

    def __init__(self, ended: set[Life]):
        self._ended, self._seconds = ended, dict[str, float]()

    def note(self, life: Life, seconds: float) -> None:
        """Notes how long a silence was that is over."""
        learner = _learner(life)
        self._seconds[learner] = max(self._seconds.get(learner, 0.0), seconds)

    def of(self, life: Life) -> float | None:
        """Returns the longest one; None of what has never ended, 0 where nobody looked meanwhile."""
        learner = _learner(life)
        unseen = 0.0 if any(_learner(each) == learner for each in self._ended.copy()) else None
        return self._seconds.get(learner, unseen)


def _learner(life: Life) -> str:
    section, what = life
    return what if section == "hook" else section


class _Silence:
    """How long one thread has shown no sign of life."""

    def __init__(self, last_sign: Callable[[], Life | None], longest: _Longest):
        self._last_sign, self._longest = last_sign, longest
        self._seen: Life | None = None
        self._since = 0.0

    def look(self, now: float, *, late: bool) -> tuple[Life, float, float | None] | None:
        """Returns the last sign, how long ago it was, and the longest silence of its section, where that is known."""
        life = self._last_sign()
        if life is not self._seen or late:
            if self._seen and not late:
                self._longest.note(self._seen, now - self._since)
            self._seen, self._since = life, now
        return (life, now - self._since, self._longest.of(life)) if life else None
