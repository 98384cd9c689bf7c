"""What becomes of a run that hangs: it ends by its own hand, so that it is started again."""

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

LAST_WORDS_SECONDS = 5.0  # for what is printed, kept and said to other workers before the end
WriteResult = Callable[..., None]  # with `exit_code` and `reason`


def ending_where_it_hangs(
    trainer: Trainer, write_result: WriteResult | None = None
) -> contextlib.AbstractContextManager[None]:
    """Ends the process where a section shows no life for longer than its limit."""
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
    """Ends the process where it takes too long until there is a trainer."""
    watchdog = Watchdog()
    return watchdog.awake(limits, Ending(watchdog, limits, workdir, write_result=write_result))


@dataclasses.dataclass(frozen=True)
class Ending:
    """Ends the process, in the watching thread: what hangs is deaf to exceptions, and often to signals."""

    watchdog: Watchdog
    limits: Limits
    workdir: Workdir
    write_result: WriteResult | None = None
    after: Callable[[], str] = lambda: ""

    def __call__(self, hang: Hang) -> None:
        """Says and keeps what hangs, and lets the others know."""
        stacks = log_name().replace("native_stderr", "stacks").replace(".log", ".txt")
        others = "".join(f", while {name} was at {doing}" for name, doing in self.others().items())
        error = PeerLostError(
            f"{hang.what} has shown no life for {hang.limit:g} s ({self.limits.reason(hang.section, hang.limit)})"
            f"{self.after()}{others}: the stacks above show where it hangs, and so does "
            f"`{self.workdir.named / stacks}`. Run the same command again to go on from the last "
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
        # The terminal may be what hangs, or the file system, or the network: this thread waits for none of them.
        threads = [threading.Thread(target=word, daemon=True) for word in words]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(LAST_WORDS_SECONDS)
        os._exit(error.exit_code)

    def others(self) -> dict[str, str]:
        """Returns, by their names, the workers that do something else than this one, and what: it may wait for them."""
        membership = joined()
        return membership.elsewhere(self.watchdog.doing) if membership else {}


def signs_of_writer(saves: Saves) -> Callable[[], Life | None]:
    """Returns what tells of the thread that writes checkpoints: one sign of life for each of them."""
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
    """Writes where each thread is: of Python's its stack, of all what they wait for in the kernel."""
    with contextlib.suppress(OSError), path.open("w") as file:  # the disk may be what hangs
        print(heading, file=file, flush=True)
        faulthandler.dump_traceback(file, all_threads=True)
        print("\nAll threads, those of TensorFlow among them: number, name, state, and where in the kernel.", file=file)
        for task in sorted(Path("/proc/self/task").glob("*")):
            with contextlib.suppress(OSError):  # it has ended since, or this system tells nothing of it
                name, state = (task / "stat").read_text().split("(", 1)[1].rsplit(")", 1)
                print(task.name, name, state.split()[0], (task / "wchan").read_text(), file=file)
