"""Makes a process slower, whatever it does: it is stopped for most of the time, and knows nothing of it."""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator

PERIOD_SECONDS = 0.02


@contextlib.contextmanager
def slowed(pid: int, factor: float) -> Iterator[None]:
    """Lets a process run for one `factor`th of the time, and go on as before at the end."""
    over = threading.Event()

    def stop_and_go() -> None:
        began, ran = time.monotonic(), 0.0
        while not over.is_set():
            # A sleep is never as short as it was asked to be: what came before is made up for.
            behind = factor * ran - (time.monotonic() - began)
            os.kill(pid, signal.SIGSTOP)
            over.wait(max(behind, PERIOD_SECONDS * (1 - 1 / factor)))
            os.kill(pid, signal.SIGCONT)
            resumed = time.monotonic()
            over.wait(PERIOD_SECONDS / factor)
            ran += time.monotonic() - resumed

    thread = threading.Thread(target=stop_and_go, daemon=True, name="stop and go")
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        os.kill(pid, signal.SIGCONT)
