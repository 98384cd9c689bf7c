"""Processes run to their ends together: the end of one is soon that of all, but for those whom the others can spare.

All of it happens in one thread, so lines never mix, and a signal finds everything between two looks at the processes.
"""

import contextlib
import math
import selectors
import signal
import time
from collections.abc import Iterable, Sequence
from typing import BinaryIO

from trainers.launch.endings import Ending, may_pass
from trainers.launch.processes import POLL_SECONDS, Command, Process, Signals
from trainers.launch.restarts import Replacements, Restarts


def run_together(
    commands: Sequence[Command],
    *,
    restarts: Restarts,
    deadline: float,
    signals: Signals,
    out: BinaryIO,
    err: BinaryIO,
) -> list[Ending]:
    """Runs all to their ends, and returns in the order they came those that count.

    Once one has failed, or all that ended have finished, the others have `deadline` seconds left. Those who follow a
    chief hear no signal but then: it is told to end with them, and what became of who did as it was told doesn't count.
    """
    endings: list[Ending] = []
    replacements = Replacements(commands, restarts, deadline=deadline, out=out)
    led = any(command.follows for command in commands)
    with contextlib.ExitStack() as stack:
        selector = stack.enter_context(selectors.DefaultSelector())
        running: list[Process] = []

        def start(indices: Iterable[int]) -> None:
            started = []
            for index in indices:
                process = Process(index, commands[index], selector, out, err)
                stack.callback(process.end)
                running.append(process)
                started.append(f"{commands[index].name} (process {process.pid})")
            if started:
                out.write(f"started {', '.join(started)}\n".encode())
                out.flush()

        start(range(len(commands)))
        until = math.inf
        while running:
            for key, _ in selector.select(POLL_SECONDS):
                key.data.pass_on()
            overdue = time.monotonic() > until
            for process in list(running):
                code = process.poll()
                if code is None:
                    continue
                process.end()
                running.remove(process)
                ending = Ending(process.index, code, process.overdue and code == -signal.SIGKILL)
                told = led and bool(endings)
                if code == 0 and commands[process.index].follows:  # dismissed: the chief is about to end
                    until = min(until, time.monotonic() + deadline)
                    continue
                if not told and replacements.spare(ending):
                    continue
                if told and may_pass(ending) and (commands[process.index].spare or not ending.overdue):
                    continue
                if all(ending.code == 0 for ending in endings):
                    until = time.monotonic() + deadline
                if led and not endings:
                    for other in running:
                        other.send(signal.SIGTERM)
                endings.append(ending)
            for number in signals.new():
                for process in running:
                    if not commands[process.index].follows:
                        process.send(number)
            if overdue or signals.kill:
                for process in running:
                    process.overdue = overdue
                    process.kill()
            if not endings:
                start(replacements.due())
    return endings
