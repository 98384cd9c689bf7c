"""Copies a run to an experiment tracker while it lasts: `Trainer.hooks = [@Track()]`, `Track.to = 'mlflow'`."""

import os
import signal
import sys
import threading
import time

import gin

from core.cluster import is_chief
from core.errors import PreemptedError
from core.signals import held_back
from trainers.hooks import Hook, Run
from trainers.runs.read import FAILED, FINISHED, RUNNING, STOPPED
from trainers.track.mirror import Mirror, told

SECONDS = 5.0  # between two looks at the run's folder
SHARE = 200.0  # the thread rests this many times as long as it computed
LONGEST = 60.0  # seconds until an unreachable tracker is tried again
UNTRACKED = "TAPELOOP_UNTRACKED"  # in the environment of trial runs, which no tracker gets
ENDING = 10.0  # seconds that the end of a run waits for the tracker


@gin.configurable
class Track(Hook):
    """Copies metrics, configuration, samples and the newest checkpoint's path to the tracker `to`.

    `to` is "mlflow", "trackio" or "wandb". `url` is MLflow's address (`None`: its own default), and `project` groups
    runs. A thread of the chief reads the run's folder every few seconds. If the tracker fails, the run warns once and
    continues, and the thread tries again.
    """

    def __init__(self, *, to: str = gin.REQUIRED, url: str | None = None, project: str | None = None):
        super().__init__()
        self.to, self.url, self.project = to, url, project
        self._follower: _Follower | None = None
        self._finished = self._warned = False

    def check(self, run: Run) -> None:
        if is_chief():
            self._mirror(run)

    def begin(self, run: Run) -> None:
        if is_chief() and UNTRACKED not in os.environ:
            mirror = self._mirror(run)
            mirror.prepare()
            self._run, self._follower = run, _Follower(mirror)

    def after_chunk(self, run: Run) -> None:
        self._warn()

    def __call__(self, run: Run) -> None:
        """Notes that the run ends here as planned."""
        self._finished = True

    def close(self) -> None:
        """Sends the rest, for at most a few seconds."""
        if self._follower is None:
            return
        error = sys.exc_info()[1]  # that ends the run
        state = FINISHED if self._finished else RUNNING  # in a later stage
        if error is not None:
            state = STOPPED if isinstance(error, PreemptedError | KeyboardInterrupt) else FAILED
        self._follower.end(state)
        self._warn()
        self._follower = None

    def _mirror(self, run: Run) -> Mirror:
        return Mirror(run.workdir.path, self.to, self.url, self.project)

    def _warn(self) -> None:
        trouble = self._follower and self._follower.trouble
        if trouble and not self._warned:
            run = self._run
            run.telemetry.warn_once(
                f"{self.to} doesn't take this run's metrics: {trouble}. The run continues, its metrics "
                f"are in `{run.workdir.metrics.name}`, and `{self.to}` gets them as soon as it answers. After the run, "
                f"`python -m trainers.track --to={self.to} {run.workdir.named}` sends the rest."
            )
        self._warned = bool(trouble)  # one warning, whatever the tracker says at each try


class _Follower:
    """A thread that copies what is new, and rests so that it takes at most half a percent of a core."""

    def __init__(self, mirror: Mirror):
        self.trouble: str | None = None  # the last error, until the tracker answers again
        self._mirror, self._state = mirror, RUNNING
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._follow, daemon=True, name="tracker")
        with held_back(signal.SIGTERM):  # in this thread
            self._thread.start()

    def end(self, state: str) -> None:
        """Sends the rest and the run's `state`, unless that takes too long."""
        self._state = state
        self._ends.set()
        self._thread.join(ENDING)
        if self._thread.is_alive():
            self.trouble = self.trouble or f"it didn't answer within {ENDING:g} s at the end of the run"

    def _follow(self) -> None:
        rest, first, ends = 0.0, True, False
        while not ends:
            ends = self._ends.wait(rest)
            began = time.thread_time()
            try:
                self._mirror.sync(self._state)
                if ends:
                    self._mirror.close()
                took = 0.0 if first else time.thread_time() - began  # the first time, it may send a long past
                self.trouble, rest, first = None, max(SECONDS, SHARE * took), False
            except Exception as error:  # whatever the tracker's package raises
                self.trouble, rest = told(error), min(max(SECONDS, 2.0 * rest), LONGEST)
