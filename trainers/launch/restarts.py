"""How often something may start again: all together, or alone one whom the others can spare for a while."""

import collections
import time
from collections.abc import Sequence
from typing import BinaryIO

from trainers.launch.endings import Ending, describe, may_pass
from trainers.launch.processes import Command

LONGEST_PAUSE_SECONDS = 30.0


class Restarts:
    """Counts the restarts that are left of `most`; each process that starts again alone takes one, as all together do.

    >>> restarts = Restarts(1)
    >>> restarts.take(), str(restarts), restarts.take()
    (True, '0 of 1 restarts left', False)
    """

    def __init__(self, most: int):
        self.most = self.left = most

    def take(self) -> bool:
        """Takes one, and says whether there was any."""
        if self.left == 0:
            return False
        self.left -= 1
        return True

    def __str__(self) -> str:
        return f"{self.left} of {self.most} restarts left"


class Replacements:
    """Starts again those whom the others can spare, each after a pause that grows from time to time."""

    def __init__(self, commands: Sequence[Command], restarts: Restarts, *, deadline: float, out: BinaryIO):
        self._commands, self._restarts, self._deadline, self._out = commands, restarts, deadline, out
        self._waiting: dict[int, float] = {}  # until when
        self._times = collections.Counter[int]()
        self._given_up: set[int] = set()

    def spare(self, ending: Ending) -> bool:
        """Says whether the others go on without the one who has ended so, for a while or to the end."""
        command = self._commands[ending.index]
        if not command.spare or not may_pass(ending):
            return False
        told = describe(command.name, ending, self._deadline)
        if self._restarts.left > len(self._waiting):
            pause = min(2.0 ** self._times[ending.index], LONGEST_PAUSE_SECONDS)
            self._times[ending.index] += 1
            self._waiting[ending.index] = time.monotonic() + pause
            self._say(f"{told}: the others go on, and it starts again in {pause:g} s")
            return True
        self._given_up.add(ending.index)
        if len(self._given_up) == sum(each.spare for each in self._commands):
            return False
        self._say(f"{told}, and no restart is left for it: the others go on")
        return True

    def due(self) -> list[int]:
        """Takes those whose pause is over."""
        now = time.monotonic()
        found = [index for index, until in self._waiting.items() if now >= until]
        for index in found:
            del self._waiting[index]
            self._restarts.take()
            self._say(f"starting {self._commands[index].name} again ({self._restarts})")
        return found

    def _say(self, line: str) -> None:
        self._out.write(f"{line}\n".encode())
        self._out.flush()
