"""Prepares a command's process before slow imports, and before imports that may fail."""

import os
import signal
import sys
from types import FrameType

from core.errors import INTERRUPTED, ConfigurationError, PreemptedError
from trainers.errors.packages import import_packages
from trainers.process.signals import STOPPING, WISHES


def begin(*packages: str) -> None:
    """Makes a signal end the process at once with its exit code; reports a missing package in one paragraph."""
    for number in STOPPING:
        if signal.getsignal(number) != signal.SIG_IGN:  # `nohup` ignores SIGHUP
            signal.signal(number, _leave)
    for number in WISHES:
        signal.signal(number, signal.SIG_IGN)  # nothing to save yet, and the default action kills
    try:
        import_packages("absl.app", "absl.flags", "absl.logging", *packages)
    except ConfigurationError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)


def _leave(number: int, _: FrameType | None) -> None:
    """Ends the process at once: raising an exception would be unsafe within an import."""
    os.write(2, f"error: stopped by {signal.Signals(number).name}. Run the same command again.\n".encode())
    os._exit(INTERRUPTED if number == signal.SIGINT else PreemptedError.exit_code)
