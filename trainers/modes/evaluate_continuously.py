"""`--mode=evaluate_continuously`: evaluates each checkpoint of a run that another process trains, until the run ends.

Its only state is `evaluations.jsonl`: after a restart, it evaluates the checkpoints that have no metrics in this file.
"""

import time
from collections.abc import Callable
from pathlib import Path

from core.checkpoint import DamagedError, Manifest, checkpoints_in, verified
from core.cluster import joined
from core.errors import EXIT_CODES, INTERRUPTED, CheckpointError, ConfigurationError, PeerLostError, PreemptedError
from core.telemetry import Console, Telemetry, TensorBoard
from trainers.lifecycle.train_to_end import ending_where_it_hangs
from trainers.loop.run_parts import FINISHED
from trainers.runs.evaluations_file import is_kept, keep
from trainers.session import Session
from trainers.workdir import Workdir, is_locked

LOOK_SECONDS = 1.0  # between two looks at the folder


def run(session: Session) -> int:
    """Prints and records the metrics of each checkpoint once. Returns when the run has ended."""
    with session.preemption.obeyed():
        beside = BesideARun(session)
    with session.preemption.granted(), ending_where_it_hangs(beside.trainer):
        beside.follow(session.flags.timeout)
    return 0


class BesideARun:
    """Evaluates, in this process, the checkpoints of a run that another process trains."""

    def __init__(self, session: Session, sleep: Callable[[float], object] = time.sleep):
        self._sleep = sleep
        self.session, self.workdir, self.trainer = session, session.workdir, session.trainer()
        self.trainer.evaluations.check()
        if joined() is not None:
            raise ConfigurationError(
                "`--mode=evaluate_continuously` runs as one separate process, but this one was started as one of "
                "several: leave out `trainers.launch`, and the runtime's `--gin_file`."
            )
        self.telemetry = Telemetry([Console(total_steps=self.trainer.steps)])
        self.checkpoints = NewCheckpoints(
            self.workdir.checkpoints,
            is_known=lambda found: is_kept(self.workdir.evaluations, found, {*self.trainer.experiment.held_out}),
            warn=lambda text: self.telemetry.note(f"Warning: {text}"),
        )
        self._last: int | None = None
        self._events: TensorBoard | None = None

    def follow(self, timeout: int | None) -> None:
        """Evaluates until the run ends. Raises a `PeerLostError` after `timeout` seconds without a new checkpoint."""
        waited, said = 0.0, ""
        while True:
            ending = how_it_ended(self.workdir, self.trainer.steps)  # what it has saved until then is found below
            if manifest := self.checkpoints.next():
                with self.trainer.section("evaluation", "the evaluation"):
                    self.evaluate(manifest)
                waited, said = 0.0, ""
            elif ending:
                print(
                    f"the run has ended: {ending}; all of its checkpoints are evaluated, in `{self.workdir.named}`",
                    flush=True,
                )
                return
            elif timeout is not None and waited >= timeout:
                raise PeerLostError(
                    f"waited {timeout} s (`--timeout`) for {what_it_waits_for(self.workdir, self._last)}. Check that "
                    "the run is training (`python -m trainers.runs`), and run the same command again."
                )
            else:
                if said != (said := what_it_waits_for(self.workdir, self._last)):
                    self.telemetry.note(f"waiting for {said}")
                with self.trainer.section("data", "the wait for a checkpoint"):
                    self.look()
                    self._sleep(LOOK_SECONDS)
                waited += LOOK_SECONDS

    def evaluate(self, manifest: Manifest) -> None:
        """Evaluates one checkpoint, and records its metrics at once. Skips a checkpoint that is deleted meanwhile."""
        if changes := self.session.changes(manifest, self.trainer):
            raise ConfigurationError(
                f"`{manifest.path}` belongs to a run with another configuration:\n{changes}\nGive the same "
                "`--gin_file` and `--gin_param` as the run has; `Experiment.eval_sources` may differ."
            )
        try:
            self.trainer.state.restore(manifest)
        except CheckpointError:
            if is_there(manifest):
                raise
            self.telemetry.note(f"`{manifest.path.name}` was removed or replaced while it was read")
            return
        found = dict(self.trainer.evaluations.evaluate(self.look))
        if self._events is None or self._last is None or manifest.step <= self._last:
            self._events = TensorBoard(self.workdir.evaluation_events, manifest.step - 1)
        for split, figures in found.items():
            self.telemetry.write(manifest.step, split, figures)
            self._events.write(manifest.step, split, figures)
        keep(self.workdir.evaluations, manifest.step, found, of=manifest)
        self._last = manifest.step

    def look(self) -> None:
        """Reports progress to the watchdog, and raises a `PreemptedError` after a signal."""
        self.trainer.watchdog.alive()
        if self.session.preemption.signal is not None:
            raise PreemptedError(
                f"stopped by {self.session.preemption.name}; the metrics so far are in "
                f"`{self.workdir.evaluations}`. Run the same command again to continue."
            )


_GOES_ON = (PreemptedError.exit_code, PeerLostError.exit_code, INTERRUPTED)  # the same command is to be run again


class NewCheckpoints:
    """Finds new checkpoints of a run, oldest first."""

    def __init__(self, directory: Path, *, is_known: Callable[[Manifest], bool], warn: Callable[[str], None]):
        self._directory, self._is_known, self._warn = directory, is_known, warn
        self._done: set[tuple[int, int]] = set()  # by what the file system says of their folders

    def next(self) -> Manifest | None:
        """Returns the oldest complete checkpoint without metrics, or None. Skips a damaged one with a warning."""
        for _, path in reversed(checkpoints_in(self._directory)):
            folder = _folder(path)
            if folder is None or folder in self._done:
                continue
            try:
                manifest = verified(path)
            except DamagedError as error:
                if _folder(path) == folder:
                    self._done.add(folder)
                    self._warn(f"checkpoint `{path}` is damaged and was passed over: {error}.")
                continue
            if not self._is_known(manifest):
                return manifest
            self._done.add(folder)
        return None


def is_there(manifest: Manifest) -> bool:
    """Returns whether a checkpoint is still there, complete and unchanged."""
    try:
        return verified(manifest.path) == manifest
    except DamagedError:
        return False


def how_it_ended(workdir: Workdir, steps: int) -> str | None:
    """Describes how a run of `steps` steps has ended, or returns None if it continues or will be started again."""
    result = workdir.read_result()
    if not result or is_locked(workdir.path / ".lock"):
        return None
    code, step, reason = result["exit_code"], result["step"], str(result.get("reason"))
    if code in _GOES_ON or (reason == FINISHED and step < steps):  # the latter is being made longer
        return None
    return reason if code == 0 else f"exit code {code} ({EXIT_CODES.get(code, 'none of our exit codes')})"


def what_it_waits_for(workdir: Workdir, last: int | None) -> str:
    """Describes the awaited event: the start of the run, or the checkpoint after step `last`."""
    if not (workdir.path / "run.json").exists():
        return f"a run to begin in `{workdir.named}`"
    result = workdir.read_result()
    stopped = f"; the run has stopped ({EXIT_CODES.get(result['exit_code'])})" if result else ""
    return f"{'the first checkpoint' if last is None else f'a checkpoint after that of step {last}'}{stopped}"


def _folder(path: Path) -> tuple[int, int] | None:
    """Returns (inode, change time) of a folder, which a replacement doesn't share, or None without a folder."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_ctime_ns
