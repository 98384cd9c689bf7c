"""Delays a signal while other code replaces its handler."""

import contextlib
import signal
import threading
from collections.abc import Iterator


@contextlib.contextmanager
def held_back(number: int) -> Iterator[None]:
    """Delays the signal `number` until its `with` block ends. The restored handler then receives it.

    Threads that start in the block ignore this signal for good: the kernel never delivers it to them.
    """
    handler = signal.getsignal(number)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [number])
    try:
        yield
    finally:
        if handler is not None and threading.current_thread() is threading.main_thread():
            signal.signal(number, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
