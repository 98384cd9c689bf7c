"""The training loop: chunks of steps, hooks between them, and reactions to signals.

Start reading at `train`. The parts are in `trainers/loop/`, one per file.
"""

import contextlib
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent import futures
from pathlib import Path
from typing import Any

import tensorflow as tf

from core import checkpoint
from core.cluster import is_chief
from core.distribution import Agreement
from core.errors import CheckpointError, ConfigurationError, NotFiniteError, PreemptedError
from core.precision import Precision
from core.telemetry import Telemetry
from trainers.evaluation.evaluator import Evaluations, short_name
from trainers.experiment import Experiment
from trainers.hooks import Hook
from trainers.loop.input import Chunks, Input
from trainers.loop.programs import Program, Programs
from trainers.loop.recovery import LeaveCapsule, Recovery
from trainers.loop.run_hooks import HookCalls, SaveCheckpoint, chunk_hooks, standard_hooks
from trainers.loop.run_state import RunContext, RunState
from trainers.loop.speed import Meter, figures_of, rate_figures, scale_figures
from trainers.process.signals import Preemption
from trainers.process.watchdog import Watchdog
from trainers.settings import Settings
from trainers.workdir import Workdir


class Trainer:
    """Trains an experiment's task with the given settings. It is the `Run` that hooks receive."""

    def __init__(
        self,
        experiment: Experiment,
        workdir: Workdir,
        settings: Settings,
        preemption: Preemption | None = None,
        *,
        step: int = 0,
        leave_capsule: LeaveCapsule | None = None,
        before_tracing: Callable[[Callable[[str], object]], object] = lambda note: None,
        more_hooks: Sequence[Hook] = (),
    ):
        """Trains the stage of `Trainer.stages` that begins or lasts at `step`.

        `leave_capsule` writes a bad step's failure snapshot, and returns the error with the replay command.
        `before_tracing` records the choices for these settings, and passes a line about them to its argument.
        `more_hooks` are called last.
        """
        if settings.stages and experiment.assembly.backend.not_compiled:  # DTensor may refuse a second program
            raise ConfigurationError(
                "`Trainer.stages` is for one device and replicas: meshes and parameter servers keep the program of "
                "their first step. Leave it out, and resume with another `Trainer.global_batch_size` and "
                "`--allow_config_change`."
            )
        self.end_of_stage, settings = settings.end_of_stage(step), settings.at(step)
        self._before_tracing, self._leave_capsule, self._more_hooks = before_tracing, leave_capsule, more_hooks
        self.experiment, self.workdir, self.settings = experiment, workdir, settings
        self.input = Input(experiment, settings, step)
        experiment.compute_in(Precision(settings.precision))
        # Before what evaluates: a mistake that both would meet in `loss` is then said of its phase.
        self.train_step = settings.train_step(experiment.assembly, self.input.batch_spec, seed=experiment.seed)
        self.evaluations = Evaluations(experiment)
        self.evaluations.check_figure(settings.keep.best)
        self.averaged = self.evaluations.readable
        self.input.decode_in(self.train_step)
        self.hooks = [*standard_hooks(settings, evaluates=bool(self.evaluations), step=step), *more_hooks]
        self.state = RunState(experiment, workdir, settings, self.train_step, input=self.input, hooks=self.hooks)
        self.progress, self.agreement = self.state.progress, Agreement(experiment.strategy)
        self.telemetry, self.watchdog, self.meter = Telemetry([]), Watchdog(), Meter()
        self._preemption = preemption or Preemption()
        context = RunContext(experiment, self.train_step, self.state, self.agreement, self.section)
        self.programs = Programs(context, alive=self.watchdog.alive, look=self._leave_untrained)
        self._recovery = Recovery(context, leave_capsule)
        followers = chunk_hooks(self.state, self.meter, lambda: self._run_chunk, self._preemption)
        self.hook_calls = HookCalls(context, self.hooks, followers)
        self._rates = rate_figures(experiment.assembly.optimizers, outer=self.state.outer)
        self._run_chunk: Program = self.programs.chunk
        self._chunks, self._reads = Chunks(iter(())), False
        self._evaluated = False  # since the last step
        self._saved_at = 0.0  # on the meter's clock
        self._following: Trainer | None = None  # of the next stage

    # --- the loop ---------------------------------------------------------------------------------------------------

    def train(
        self, telemetry: Telemetry | None = None, *, once_traced: Callable[[], None] = lambda: None
    ) -> dict[str, float]:
        """Runs to the last step of the stage, or until a hook stops the run. Returns the last evaluation."""
        self.telemetry = telemetry or self.telemetry
        self.hook_calls.check(self)
        with contextlib.ExitStack() as ending:
            ending.enter_context(self._preemption.granted())
            ending.enter_context(contextlib.closing(self.hook_calls))
            ending.enter_context(self.state.saves.settled(self.telemetry.note))
            fetching = ending.enter_context(futures.ThreadPoolExecutor(1, "next chunk"))
            with self.section("data", "the first chunk of data"):
                stacked = next(self._read_on())
            self.warm_up(stacked)
            once_traced()
            with self.section("step", "training"):
                self._recovery.begin()
                self.hook_calls.begin(self)
                self.meter.restart()
                self._saved_at = self.meter.clock()
                while self._lasts:
                    chunks = self._chunks
                    if self.step + self._left_of_chunk < self.end_of_stage and self._preemption.signal is None:
                        chunks.fetch_next(fetching)
                    self.advance(stacked)
                    if self._lasts:
                        with self.section("data", "the next chunk of data"):
                            stacked = next(self._chunks)
                        if self._chunks is not chunks:  # read anew, which takes its time as it did at the beginning
                            self.meter.restart()
            self.settle()
        return self.evaluation

    def next_stage(self) -> "Trainer":
        """Returns the trainer of the stage that follows, with this run's last checkpoint restored."""
        self.stop_reading()
        following = Trainer(
            self.experiment, self.workdir, self.settings, self._preemption,
            step=self.step,
            leave_capsule=self._leave_capsule,
            before_tracing=self._before_tracing,
            more_hooks=self._more_hooks,
        )  # fmt: skip
        following.evaluations, following.averaged = self.evaluations, self.averaged  # traced already
        self.agreement.barrier()  # the chief has written what all are about to read
        manifest = checkpoint.newest(self.workdir.checkpoints, up_to=self.step, warn=self.telemetry.warn_once)
        if manifest is None or manifest.step != self.step:
            raise CheckpointError(
                f"the checkpoint of step {self.step}, where a stage of `Trainer.stages` ends, is gone from "
                f"`{self.workdir.checkpoints}`: run the same command again to go on from the newest one."
            )
        following.state.restore(manifest)
        self._following = following
        return following

    def warm_up(self, stacked: Any) -> None:
        """Traces (and compiles) the program of a chunk, and calls it for zero steps."""
        with self.section("tracing", "tracing"):
            self._before_tracing(self.telemetry.note)
            began = time.perf_counter()
            self._run_chunk = self.programs.make(stacked, self.telemetry.note)
            self.evaluations.trace()
            if not self.train_step.backend.steps_here:
                self.averaged.update()
            self.programs.begin(self._run_chunk, stacked)
            self.programs.tell(self.telemetry, time.perf_counter() - began)

    def advance(self, stacked: Any) -> None:
        """Runs the rest of the current chunk of steps, and the hooks that are due then."""
        self.hook_calls.before_chunk(self)
        self.take_steps(stacked, self._left_of_chunk, run=self._run_chunk)
        self.hook_calls.after_chunk(self)
        due = self.hook_calls.due(self)
        preempted, wanted, timed, writing = self.agreement.any_workers(
            self._preemption.signal is not None,
            self._preemption.take_wish(signal.SIGUSR1),
            self._save_is_timed,
            self.state.saves.busy,
        )
        if not writing:
            self.state.saves.go_on()
        if due or preempted or wanted or timed:
            with self.programs.explained():  # what a step raises that was handed out is raised here
                self.train_step.backend.settle(self._run_chunk)
            saved = any(isinstance(hook, SaveCheckpoint) for hook in due)  # by a hook, at this step
            if self._recovery.went_back(self.telemetry, saving=preempted or wanted or timed or saved):
                self._read_on()
                due, saved = [], True
            timed = timed and not saved
        if due:
            self.hook_calls.call(due, self)
        if (preempted or wanted) and not self.state.finished:
            with self.section("save", "the last checkpoint" if preempted else "the checkpoint that a signal asks for"):
                path = self.save()
                self.settle()
            if not preempted:
                self.telemetry.note(f"a SIGUSR1: saved as `{path.name}`, and going on")
                return
            raise PreemptedError(
                f"stopped by {self._preemption.name} after step {self.step} of {self.steps}; everything is in "
                f"`{path.name}`. Run the same command again to go on."
            )
        if timed and not self.state.finished:
            with self.section("save", "the checkpoint that is due by the clock"):
                self.save()

    def take_steps(self, stacked: Any, count: int, *, run: Program) -> None:
        """Takes the next `count` steps of a chunk with the program `run`, without hooks."""
        first, end = self.step - self.step % self.input.chunk_steps, min(self.step + count, self.end_of_stage)
        with self.programs.explained():
            run(stacked, self.train_step.backend.handed(tf.constant([first, self.step, end], tf.int64)))
        self.meter.add(end - self.step)
        self.state.advance(end)
        self._evaluated = False

    @contextlib.contextmanager
    def section(self, name: str, what: str) -> Iterator[None]:
        """Tells the watchdog and the meter that the section `name` begins, such as "save". `what` describes it."""
        with self.watchdog.section(name, what), self.meter.section(name):
            yield

    def stop_reading(self) -> None:
        """Stops prefetching, also of later stages: nothing is trained afterwards."""
        self._chunks.close()
        if self._following:
            self._following.stop_reading()

    def _read_on(self) -> Chunks:
        """Restarts the input at the current step."""
        self._chunks = self.input.chunks_from(self.step, alive=self.watchdog.alive)
        self._reads = True
        return self._chunks

    @property
    def _lasts(self) -> bool:
        """Returns whether the stage has more steps."""
        return self.step < self.end_of_stage and not self.state.finished

    @property
    def _left_of_chunk(self) -> int:
        return self.input.chunk_steps - self.step % self.input.chunk_steps

    @property
    def _save_is_timed(self) -> bool:
        """Returns whether a save is due by the clock. The chief's clock decides for all workers."""
        minutes = self.settings.checkpoint_every_minutes
        return minutes is not None and is_chief() and self.meter.clock() - self._saved_at >= 60.0 * minutes

    def _leave_untrained(self) -> None:
        """Raises a `PreemptedError` if a signal came before the first step."""
        if self.agreement.any_worker(self._preemption.signal is not None):
            raise PreemptedError(self._preemption.before_first_step)

    # --- what hooks see ---------------------------------------------------------------------------------------------

    @property
    def step(self) -> int:
        """Returns the number of completed steps."""
        return self.state.step

    @property
    def steps(self) -> int:
        """Returns the number of steps of the whole run."""
        return self.settings.steps

    @property
    def chunk(self) -> Any:
        """Returns the last traced function of a chunk of steps."""
        return self.programs.chunk

    @property
    def evaluation(self) -> dict[str, float]:
        """Returns the last reported metrics, including those from before a restart."""
        return dict(self.state.ending.reported)

    def next_chunk(self) -> Any:
        """Returns the chunk of batches that contains the next step, without consuming it."""
        if not self._reads:
            self._read_on()
        return self._chunks.peek(within=self.step % self.input.chunk_steps > 0)

    def figures(self) -> dict[str, float]:
        """Returns the weighted means since the last metric line."""
        return figures_of(self.progress.read_sums())

    def take_figures(self) -> dict[str, float]:
        """Returns the metrics of a metric line, speed included; restarts all sums and counts."""
        figures = figures_of(self.progress.take_sums())
        handed_out = self.train_step.backend.figures(self._run_chunk)
        scales = scale_figures(self.train_step, figures)
        spoken = {**figures, **self._rates(), **scales, **handed_out, **self._recovery.figures()}
        return {**spoken, **self.meter.take(self.settings.global_batch_size)}

    def evaluate(self) -> dict[str, float]:
        """Evaluates on all held-out sources, and writes the metrics."""
        if not self._evaluated:  # a user's hook may have evaluated already
            for split, figures in self.evaluations.evaluate(self.watchdog.alive):
                self.report(split, figures)
            self._evaluated = True
        return self.evaluation

    def report(self, split: str, figures: Mapping[str, float]) -> None:
        """Writes metrics of the task's quality. The last metrics become part of the run's `result.json`."""
        self.telemetry.write(self.step, split, figures)
        self.state.ending.report(self.step, {short_name(split, name): float(x) for name, x in figures.items()})

    def save(self) -> Path:
        """Starts saving a checkpoint of the current step. Returns the checkpoint's path. Call it on every worker."""
        self._saved_at = self.meter.clock()
        try:
            return self.state.save(warn=self.telemetry.warn_once)
        except NotFiniteError as error:
            raise self._recovery.leave_capsule(error, self.step - 1, self.telemetry) from None

    def settle(self) -> None:
        """Waits until pending checkpoints are written. Call it on every worker."""
        with self.section("save", "writing a checkpoint"):
            self.state.saves.settle(self.telemetry.note)

    def check_replicas(self) -> None:
        """Raises a `DriftError` if replicas hold different values of a variable."""
        self.state.check_replicas()

    def stop(self, reason: str) -> None:
        """Ends the run after this step, once all due hooks have been called. `reason` is recorded."""
        self.hook_calls.stop(reason)
