"""Profiles of TensorFlow's operations in some steps of a run, for `xprof` and TensorBoard."""

import contextlib
import importlib.util
from collections.abc import Callable, Sequence
from pathlib import Path

import tensorflow as tf

from core.cluster import is_chief
from core.errors import ConfigurationError, shown
from core.telemetry import Telemetry
from trainers.hooks import ChunkHook, Run

EXTRA = "`pip install -e '.[profile]'` brings it"


class Profiler(ChunkHook):
    """Profiles whole chunks of steps into `folder`: the chunks that contain `steps`, and one after each request.

    `steps` is (first, last) in a run of `total` steps. `take_wish` returns whether a profile was requested since its
    last call. With several workers only the chief profiles.
    """

    def __init__(
        self, folder: Path, steps: Sequence[int] | None, *, total: int, chunk_steps: int, take_wish: Callable[[], bool]
    ):
        self._folder, self._steps, self._chunk_steps, self._take_wish = folder, steps, chunk_steps, take_wish
        self._began: int | None = None  # the first profiled step
        self._until = 0
        self._marked = contextlib.ExitStack()  # in a profile, a chunk of steps
        self._telemetry = Telemetry()
        if steps is not None:
            _check(steps, total)

    def begin(self, run: Run) -> None:
        self._turn(run)

    def before_chunk(self, run: Run) -> None:
        if self._began is not None:
            self._marked.enter_context(tf.profiler.experimental.Trace("chunk", step_num=run.step, _r=1))

    def after_chunk(self, run: Run) -> None:
        self._marked.close()
        self._turn(run)

    def close(self) -> None:
        self._marked.close()
        if self._began is not None:
            self._ended()

    def _turn(self, run: Run) -> None:
        """Ends a complete profile, and begins one if the next steps are to be profiled."""
        step, self._telemetry = run.step, run.telemetry
        wished = self._take_wish()
        if self._began is not None and step >= self._until:
            began = self._began
            if self._ended():
                run.telemetry.note(f"profiled steps {began} to {step}: `xprof {self._folder}` shows them ({EXTRA})")
        if self._began is not None or not is_chief():
            return
        if wished:
            self._begin(step, step + 1)
        elif self._steps is not None:
            first, last = self._steps
            if first < step - step % self._chunk_steps + self._chunk_steps and step < last:
                self._begin(step, last)

    def _ended(self) -> bool:
        """Ends the profile. Returns whether it was saved. If not, as on a full disk, it warns and the run continues."""
        began, self._began = self._began, None
        try:
            tf.profiler.experimental.stop()
        except tf.errors.OpError as error:
            self._telemetry.warn_once(
                f"the profile from step {began} on could not be kept: {error.message}. Make room, and ask for another "
                "by `kill -USR2`; the run goes on."
            )
            return False
        return True

    def _begin(self, step: int, until: int) -> None:
        tf.profiler.experimental.start(str(self._folder))
        self._began, self._until = step, until


def _check(steps: Sequence[int], total: int) -> None:
    pair = isinstance(steps, list | tuple) and len(steps) == 2 and all(type(x) is int for x in steps)
    if not pair or not 0 <= steps[0] < steps[1]:
        raise ConfigurationError(
            f"`Trainer.profile` is {shown(steps)}; give the first and the last step to profile, the first one "
            "smaller, as in (100, 150)."
        )
    if steps[0] >= total:
        raise ConfigurationError(
            f"`Trainer.profile` is {shown(steps)}, but the run has {total} steps: begin at a step below {total}."
        )
    if importlib.util.find_spec("xprof") is None:
        raise ConfigurationError(
            f"`Trainer.profile` is {shown(steps)}, but `xprof`, which shows profiles, isn't installed: {EXTRA}."
        )
