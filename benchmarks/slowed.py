"""Slows a process down by stopping it most of the time; the process itself doesn't notice."""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator

RUN_SECONDS = 0.004


@contextlib.contextmanager
def slowed(pid: int, factor: float) -> Iterator[None]:
    """Lets a process run for one `factor`th of the time, and at full speed again after the block."""
    over = threading.Event()

    def stop_and_go() -> None:
        began, ran = time.monotonic(), 0.0
        while not over.is_set():
            resumed = time.monotonic()
            over.wait(RUN_SECONDS)
            os.kill(pid, signal.SIGSTOP)
            now = time.monotonic()
            ran += now - resumed
            over.wait(due(ran, now - began, factor))
            os.kill(pid, signal.SIGCONT)

    thread = threading.Thread(target=stop_and_go, daemon=True, name="stop and go")
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def due(ran: float, elapsed: float, factor: float) -> float:
    """Returns how long to stop after running for `ran`; corrects for sleeps that took too long."""
    return max(0.0, factor * ran - elapsed)
