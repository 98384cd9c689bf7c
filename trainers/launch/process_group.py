"""Runs a group of processes. When one ends, the others end soon, unless the one is expendable.

All of it runs in one thread, so output lines never mix, and signals are handled between checks of the processes.
"""

import collections
import contextlib
import math
import selectors
import signal
import time
from collections.abc import Iterable, Sequence
from typing import BinaryIO

from trainers.launch.endings import Ending, describe, may_pass, say
from trainers.launch.processes import POLL_SECONDS, Command, Process, Signals

LONGEST_PAUSE_SECONDS = 30.0


class Restarts:
    """Counts the remaining restarts. Restarting one process takes one, and so does restarting all.

    >>> restarts = Restarts(1)
    >>> restarts.take(), str(restarts), restarts.take()
    (True, '0 of 1 restarts left', False)
    """

    def __init__(self, most: int):
        self.most = self.left = most

    def take(self) -> bool:
        """Takes one restart. Returns False if none was left."""
        if self.left == 0:
            return False
        self.left -= 1
        return True

    def __str__(self) -> str:
        return f"{self.left} of {self.most} restarts left"


class Replacements:
    """Restarts expendable processes, each after a pause that grows with each restart."""

    def __init__(self, commands: Sequence[Command], restarts: Restarts, *, deadline: float, out: BinaryIO):
        self._commands, self._restarts, self._deadline, self._out = commands, restarts, deadline, out
        self._waiting: dict[int, float] = {}  # end of the pause
        self._times = collections.Counter[int]()
        self._given_up: set[int] = set()

    def spare(self, ending: Ending) -> bool:
        """Schedules a restart of an expendable process, if one is left. Returns whether the others continue."""
        command = self._commands[ending.index]
        if not command.spare or not may_pass(ending):
            return False
        told = describe(command.name, ending, self._deadline)
        if self._restarts.left > len(self._waiting):
            pause = min(2.0 ** self._times[ending.index], LONGEST_PAUSE_SECONDS)
            self._times[ending.index] += 1
            self._waiting[ending.index] = time.monotonic() + pause
            say(self._out, f"{told}: the others continue, and it restarts in {pause:g} s")
            return True
        self._given_up.add(ending.index)
        if len(self._given_up) == sum(each.spare for each in self._commands):
            return False
        say(self._out, f"{told}, and no restart is left for it: the others continue")
        return True

    def due(self) -> list[int]:
        """Returns the indices of the processes whose pause is over, and counts a restart for each."""
        now = time.monotonic()
        found = [index for index, until in self._waiting.items() if now >= until]
        for index in found:
            del self._waiting[index]
            self._restarts.take()
            say(self._out, f"starting {self._commands[index].name} again ({self._restarts})")
        return found


def run_together(
    commands: Sequence[Command], *, restarts: Restarts, deadline: float, signals: Signals, out: BinaryIO, err: BinaryIO
) -> list[Ending]:
    """Runs all processes until they end. Returns how they ended, the first to end first.

    As soon as one process has ended for good, the others have `deadline` seconds left. In a cluster with a chief, they
    also get a SIGTERM at that moment. The result leaves out processes that this signal ended.
    """
    with _Group(commands, restarts, deadline=deadline, out=out, err=err) as group:
        group.start(range(len(commands)))
        while group.running:
            group.listen(POLL_SECONDS)
            overdue = time.monotonic() > group.until
            group.look()
            for number in signals.new():
                group.pass_on(number)
            if overdue or signals.kill:
                group.kill(overdue=overdue)
            if not group.endings:
                group.start(group.replacements.due())
    return group.endings


class _Group(contextlib.ExitStack):
    """The running processes and their endings. The end of the `with` block kills all processes."""

    def __init__(
        self, commands: Sequence[Command], restarts: Restarts, *, deadline: float, out: BinaryIO, err: BinaryIO
    ):
        super().__init__()
        self.running: list[Process] = []
        self.endings: list[Ending] = []
        self.until = math.inf  # deadline of the running processes
        self.replacements = Replacements(commands, restarts, deadline=deadline, out=out)
        self._commands, self._deadline, self._out, self._err = commands, deadline, out, err
        self._led = any(command.follows for command in commands)
        self._selector = self.enter_context(selectors.DefaultSelector())

    def start(self, indices: Iterable[int]) -> None:
        """Starts the commands with these indices, and prints a line."""
        started = []
        for index in indices:
            process = Process(index, self._commands[index], self._selector, self._out, self._err)
            self.callback(process.end)
            self.running.append(process)
            started.append(f"{self._commands[index].name} (process {process.pid})")
        if started:
            say(self._out, f"started {', '.join(started)}")

    def listen(self, seconds: float) -> None:
        """Forwards the processes' output. Waits up to `seconds` for some."""
        for key, _ in self._selector.select(seconds):
            key.data.pass_on()

    def look(self) -> None:
        """Records the processes that have ended."""
        for process in list(self.running):
            code = process.poll()
            if code is not None:
                process.end()
                self.running.remove(process)
                self._take_down(Ending(process.index, code, process.overdue and code == -signal.SIGKILL))

    def pass_on(self, number: int) -> None:
        """Sends a signal to all processes except a chief's followers."""
        for process in self.running:
            if not self._commands[process.index].follows:
                process.send(number)

    def kill(self, *, overdue: bool) -> None:
        for process in self.running:
            process.overdue = overdue
            process.kill()

    def _take_down(self, ending: Ending) -> None:
        command, told = self._commands[ending.index], self._led and bool(self.endings)
        if ending.code == 0 and command.follows:  # ended by the chief, which is about to end
            self.until = min(self.until, time.monotonic() + self._deadline)
            return
        if not told and self.replacements.spare(ending):
            return
        if told and may_pass(ending) and (command.spare or not ending.overdue):
            return
        if all(before.code == 0 for before in self.endings):
            self.until = time.monotonic() + self._deadline
        if self._led and not self.endings:
            for other in self.running:
                other.send(signal.SIGTERM)
        self.endings.append(ending)
