"""Signals that must not be lost while somebody else's code has its own way with them."""

import contextlib
import signal
import threading
from collections.abc import Iterator


@contextlib.contextmanager
def held_back(number: int) -> Iterator[None]:
    """Keeps a signal waiting, and then hands it to whoever had it before.

    The kernel gives a signal to any thread that doesn't hold it back: those that are started in here do so for good.
    """
    handler = signal.getsignal(number)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [number])
    try:
        yield
    finally:
        if handler is not None and threading.current_thread() is threading.main_thread():
            signal.signal(number, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
