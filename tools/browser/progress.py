"""Progress lines, and an end for a step that takes too long."""

import faulthandler
import time

STEP_SECONDS = 600  # longer than each limit of a single wait
STARTED = time.monotonic()


def progress(text: str) -> None:
    """Prints `text` with the seconds since the start. If the next line takes too long, a traceback ends the process."""
    print(f"{time.monotonic() - STARTED:6.1f} s: {text}", flush=True)
    faulthandler.dump_traceback_later(STEP_SECONDS, exit=True)


def finish() -> None:
    """Removes the limit, after the last step."""
    faulthandler.cancel_dump_traceback_later()
