"""What becomes of a run that hangs: it ends by its own hand, so that it is started again."""

import contextlib
import faulthandler
import functools
import os
import sys
import threading
from collections.abc import Callable

from core.errors import PeerLostError
from core.workers import joined
from trainers.trainer import Trainer

LAST_WORDS_SECONDS = 5.0  # for what is printed, kept and said to other workers before the end


def ending_where_it_hangs(
    trainer: Trainer, write_result: Callable[..., None] | None = None
) -> contextlib.AbstractContextManager[None]:
    """Ends the process where a section shows no life for `Trainer.section_deadline`."""
    return trainer.watchdog.awake(trainer.settings.section_deadline, functools.partial(_end, trainer, write_result))


def _end(trainer: Trainer, write_result: Callable[..., None] | None, section: str) -> None:
    """Ends the process, in the watching thread: what hangs is deaf to exceptions, and often to signals."""
    error = PeerLostError(
        f"{section} has shown no life for {trainer.settings.section_deadline:g} s (`Trainer.section_deadline`), after "
        f"step {trainer.step}: the stacks above show where it hangs. Run the same command again to go on from the last "
        "checkpoint; if it was only slow, raise the deadline."
    )

    def message() -> None:
        faulthandler.dump_traceback(all_threads=True)
        print(f"error: {error}", file=sys.stderr, flush=True)

    words = [message]
    if write_result:
        words.append(functools.partial(write_result, exit_code=error.exit_code, reason=str(error)))
    if membership := joined():
        words.append(functools.partial(membership.leave, f"{section} hung"))
    # The terminal may be what hangs, or the file system, or the network: this thread waits for none of them.
    threads = [threading.Thread(target=word, daemon=True) for word in words]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LAST_WORDS_SECONDS)
    os._exit(error.exit_code)
