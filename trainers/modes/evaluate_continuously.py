"""`--mode=evaluate_continuously`: each checkpoint of a run that another process trains, until that run is over.

All that it knows lies in `evaluations.jsonl`: killed and started again, it evaluates what it hasn't kept figures of.
"""

import time
from collections.abc import Callable

from core.checkpoint import Manifest
from core.cluster import joined
from core.errors import CheckpointError, ConfigurationError, PeerLostError, PreemptedError
from core.telemetry import Console, Telemetry, TensorBoard
from trainers.lifecycle.hang_exit import ending_where_it_hangs
from trainers.modes.following import NewCheckpoints, how_it_ended, is_there, what_it_waits_for
from trainers.runs.evaluations_file import is_kept, keep
from trainers.session import Session

LOOK_SECONDS = 1.0  # between two looks at the folder


def run(session: Session) -> int:
    """Prints and keeps the figures of each checkpoint, once; ends when the run has."""
    with session.preemption.obeyed():
        beside = BesideARun(session)
    with session.preemption.granted(), ending_where_it_hangs(beside.trainer):
        beside.follow(session.flags.timeout)
    return 0


class BesideARun:
    """Evaluates by its own process what another one trains."""

    def __init__(self, session: Session, sleep: Callable[[float], object] = time.sleep):
        self._sleep = sleep
        self.session, self.workdir, self.trainer = session, session.workdir, session.trainer()
        self.trainer.evaluations.check()
        if joined() is not None:
            raise ConfigurationError(
                "`--mode=evaluate_continuously` is one process beside the run, but this one was started as one of "
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
        """Evaluates until the run is over; raises a `PeerLostError` where for `timeout` seconds nothing new comes."""
        waited, said = 0.0, ""
        while True:
            ending = how_it_ended(self.workdir, self.trainer.steps)  # what it has saved until then is found below
            if manifest := self.checkpoints.next():
                with self.trainer.section("evaluation", "the evaluation"):
                    self.evaluate(manifest)
                waited, said = 0.0, ""
            elif ending:
                print(
                    f"the run is over: {ending}; its checkpoints are evaluated, in `{self.workdir.named}`", flush=True
                )
                return
            elif timeout is not None and waited >= timeout:
                raise PeerLostError(
                    f"waited {timeout} s (`--timeout`) for {what_it_waits_for(self.workdir, self._last)}. See whether "
                    "the run is at work (`python -m trainers.runs`), and run the same command again."
                )
            else:
                if said != (said := what_it_waits_for(self.workdir, self._last)):
                    self.telemetry.note(f"waiting for {said}")
                with self.trainer.section("data", "the wait for a checkpoint"):
                    self.look()
                    self._sleep(LOOK_SECONDS)
                waited += LOOK_SECONDS

    def evaluate(self, manifest: Manifest) -> None:
        """Evaluates one checkpoint, and keeps its figures all at once; one that vanishes meanwhile is let go."""
        if changes := self.session.changes(manifest, self.trainer):
            raise ConfigurationError(
                f"`{manifest.path}` is of a run of another configuration:\n{changes}\nGive the same `--gin_file` and "
                "`--gin_param` as the run has; `Experiment.eval_sources` may differ."
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
        """Shows a sign of life, and leaves if a signal has asked for it."""
        self.trainer.watchdog.alive()
        if self.session.preemption.signal is not None:
            raise PreemptedError(
                f"stopped by {self.session.preemption.name}; the figures of what was evaluated are in "
                f"`{self.workdir.evaluations}`. Run the same command again to go on."
            )
