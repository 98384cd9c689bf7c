"""Ends the process of a run that hangs, so that the run can be restarted."""

import contextlib
import dataclasses
import faulthandler
import functools
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from core.checkpoint import Saves
from core.cluster import joined
from core.errors import PeerLostError
from trainers.loop.watchdog import Hang, Life, Watchdog
from trainers.options.deadlines import Limits
from trainers.process.tensorflow import log_name
from trainers.trainer import Trainer
from trainers.workdir import Workdir

LAST_WORDS_SECONDS = 5.0  # time to print, record and tell other workers before the exit
WriteResult = Callable[..., None]  # with `exit_code` and `reason`


def ending_where_it_hangs(
    trainer: Trainer, write_result: WriteResult | None = None
) -> contextlib.AbstractContextManager[None]:
    """Within the block, ends the process if a section of the run shows no progress for longer than its deadline."""
    ending = Ending(
        trainer.watchdog,
        trainer.settings.limits,
        trainer.workdir,
        write_result=write_result,
        after=lambda: f", after step {trainer.step}",
    )
    if membership := joined():
        membership.show(lambda: trainer.watchdog.doing)
    writer = signs_of_writer(trainer.state.saves)
    return trainer.watchdog.awake(ending.limits, ending, beside=[writer], is_waiting=lambda: bool(ending.others()))


def ending_where_set_up_hangs(
    workdir: Workdir, limits: Limits, write_result: WriteResult | None = None
) -> contextlib.AbstractContextManager[None]:
    """Within the block, ends the process if setting up the trainer takes too long."""
    watchdog = Watchdog()
    return watchdog.awake(limits, Ending(watchdog, limits, workdir, write_result=write_result))


@dataclasses.dataclass(frozen=True)
class Ending:
    """Ends the process from the watchdog's thread: a hanging thread can't handle exceptions, and often no signals."""

    watchdog: Watchdog
    limits: Limits
    workdir: Workdir
    write_result: WriteResult | None = None
    after: Callable[[], str] = lambda: ""

    def __call__(self, hang: Hang) -> None:
        """Reports and records what hangs, tells the other workers, and ends the process."""
        stacks = log_name().replace("native_stderr", "stacks").replace(".log", ".txt")
        others = "".join(f", while {name} was at {doing}" for name, doing in self.others().items())
        error = PeerLostError(
            f"{hang.what} has shown no progress for {hang.limit:g} s ({self.limits.reason(hang.section, hang.limit)})"
            f"{self.after()}{others}: the stacks above show where it hangs, and so does "
            f"`{self.workdir.named / stacks}`. Run the same command again to resume from the last "
            "checkpoint; if it was only slow, give it longer, as "
            f"`Trainer.section_deadlines = {{'{hang.section}': {2 * hang.limit:g}}}`."
        )

        def message() -> None:
            faulthandler.dump_traceback(all_threads=True)
            print(f"error: {error}", file=sys.stderr, flush=True)

        words: list[Callable[..., object]] = [
            message,
            functools.partial(write_stacks, self.workdir.path / stacks, str(error)),
        ]
        if self.write_result:
            words.append(functools.partial(self.write_result, exit_code=error.exit_code, reason=str(error)))
        if membership := joined():
            words.append(functools.partial(membership.leave, f"{hang.what} hung"))
        # The terminal, file system or network may be what hangs: this thread waits for none of them.
        threads = [threading.Thread(target=word, daemon=True) for word in words]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(LAST_WORDS_SECONDS)
        os._exit(error.exit_code)

    def others(self) -> dict[str, str]:
        """Returns {worker: activity} of workers with another activity than this one; this worker may wait for them."""
        membership = joined()
        return membership.elsewhere(self.watchdog.doing) if membership else {}


def signs_of_writer(saves: Saves) -> Callable[[], Life | None]:
    """Returns a function that returns a new `Life` for each checkpoint being written, or None if none is."""
    what = "writing a checkpoint"
    seen: object = None
    sign: Life = ("save", what)

    def last_sign() -> Life | None:
        nonlocal seen, sign
        save = saves.under_way
        if save is not seen:
            seen, sign = save, ("save", what)
        return sign if save is not None else None

    return last_sign


def write_stacks(path: Path, heading: str) -> None:
    """Writes to `path` the stack of each Python thread, and the kernel function in which each thread waits."""
    with contextlib.suppress(OSError), path.open("w") as file:  # the disk may be what hangs
        print(heading, file=file, flush=True)
        faulthandler.dump_traceback(file, all_threads=True)
        print("\nAll threads, including TensorFlow's: number, name, state, and where in the kernel.", file=file)
        for task in sorted(Path("/proc/self/task").glob("*")):
            with contextlib.suppress(OSError):  # it has ended, or the system doesn't show it
                name, state = (task / "stat").read_text().split("(", 1)[1].rsplit(")", 1)
                print(task.name, name, state.split()[0], (task / "wchan").read_text(), file=file)
