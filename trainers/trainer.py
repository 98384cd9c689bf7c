"""The loop around the step: chunks, hooks between them, the ways a run can end; long because they share one state."""

import contextlib
import functools
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent import futures
from pathlib import Path

import tensorflow as tf

from core.distribution import Agreement
from core.engine import ALL_WELL, Progress, make_chunk
from core.errors import CheckpointError, NotFiniteError, PreemptedError, TapeloopError
from core.task import Batch
from core.telemetry import Telemetry
from trainers.errors.tensorflow import explained, repeatable_or_refused
from trainers.errors.xla import compiled_or_refused
from trainers.evaluation.all_sources import Evaluations, short_name
from trainers.evaluation.averaged_weights import readable_task
from trainers.experiment import Experiment
from trainers.loop.bad_step import explain_bad_step
from trainers.loop.compile_choice import Choosing
from trainers.loop.gauges import Gauge, make_gauges
from trainers.loop.hook_calls import Calling
from trainers.loop.input import Chunks, Input
from trainers.loop.learning_rates import rate_figures
from trainers.loop.next_step import NextStep
from trainers.loop.profiler import Profiler
from trainers.loop.recovery import Recovery
from trainers.loop.run_state import RunState
from trainers.loop.speed_meter import Meter, figures_of
from trainers.loop.standard_hooks import SaveCheckpoint, standard_hooks
from trainers.loop.unmoved import Unmoved
from trainers.loop.watchdog import Watchdog
from trainers.options.checkpoints import check_figure
from trainers.process.signals import Preemption
from trainers.settings import Settings
from trainers.workdir import Workdir

LeaveCapsule = Callable[[Experiment, Settings, Workdir, Input, TapeloopError, int], TapeloopError]


def no_capsule(
    experiment: Experiment, settings: Settings, workdir: Workdir, input: Input, error: TapeloopError, step: int
) -> TapeloopError:
    """Returns the error as it is."""
    return error


class Trainer:
    """Trains an experiment's task as the settings say. It is the `Run` that hooks see."""

    def __init__(
        self,
        experiment: Experiment,
        workdir: Workdir,
        settings: Settings,
        preemption: Preemption | None = None,
        *,
        leave_capsule: LeaveCapsule = no_capsule,
    ):
        """`leave_capsule` keeps what repeats a bad step, and names it in the error that it returns."""
        self.experiment, self.workdir, self.settings = experiment, workdir, settings
        self.input = Input(experiment, settings)
        # Before what evaluates: a mistake that both would meet in `loss` is then said of its phase.
        self.train_step = settings.train_step(experiment.assembly, self.input.batch_spec, seed=experiment.seed)
        self.evaluations = Evaluations(experiment)
        if settings.keep.best:
            check_figure(settings.keep.best, self.evaluations.figures, "Trainer.keep_best")
        self.averaged = readable_task(experiment, self.evaluations.averaged)
        self.input.decode_in(self.train_step)
        self.progress = Progress(
            {name: spec.sums_of_update for name, spec in self.train_step.specs.items()},
            strategy=experiment.strategy,
        )
        rounds = self.train_step.backend.rounds(self.train_step, experiment.assembly)
        skipping = settings.policies.skipping(self.train_step, experiment.assembly)
        self._make_chunk = functools.partial(
            make_chunk, self.train_step, self.input.chunk_spec, self.progress, rounds or skipping
        )
        self.chunk = self._make_chunk()
        self.hooks = standard_hooks(settings, evaluates=bool(self.evaluations))
        outer = rounds.meeting.outer if rounds else None
        self.state = RunState(
            experiment,
            workdir,
            settings,
            variables={**experiment.variables, **(rounds.variables if rounds else {})},
            optimizers=[*experiment.assembly.optimizers.values(), *([outer] if outer else [])],
            input=self.input,
            progress=self.progress,
            hooks=self.hooks,
            skipping=skipping,
        )
        self._rates = rate_figures(experiment.assembly.optimizers, outer=outer)
        self.agreement, self.watchdog = Agreement(experiment.strategy), Watchdog()
        self._recovery = Recovery(self.state, self.train_step, self.agreement, self._leaving_capsule, self.watchdog)
        self.telemetry = Telemetry([])
        self._calling = Calling(self.hooks, self.state, self.agreement, self.watchdog)
        self._run_chunk: Callable[[Batch, tf.Tensor], object] = self.chunk
        self._next_step = NextStep(experiment, self.input, self.train_step, steps=settings.steps)
        self._profiler = Profiler(
            workdir.events, settings.profile, total=settings.steps, chunk_steps=self.input.chunk_steps
        )
        self._meter = Meter()
        self._gauges: Mapping[str, Gauge] | None = None
        self._chunks = Chunks(iter(()))  # what it reads, once it trains
        self._preemption = preemption or Preemption()
        self._leave_capsule = leave_capsule
        self._evaluated = False  # since the last step

    # --- the loop ---------------------------------------------------------------------------------------------------

    def train(
        self, telemetry: Telemetry | None = None, *, once_traced: Callable[[], None] = lambda: None
    ) -> dict[str, float]:
        """Runs to the last step, or until a hook stops the run; returns the last evaluation."""
        self.telemetry = telemetry or self.telemetry
        self._calling.check(self)
        backend = self.train_step.backend
        self._read_on()
        saved, fetching = self.state.saves.settled(self.telemetry.note), futures.ThreadPoolExecutor(1, "next chunk")
        with self._preemption.granted(), contextlib.closing(self._profiler), saved, fetching:
            self.watchdog.begin("data", "the first chunk of data")
            stacked = next(self._chunks)
            self.warm_up(stacked)
            once_traced()
            self._recovery.begin()
            self.telemetry.progress(self.step)
            if self.telemetry.live:
                self._gauges = make_gauges(self._meter, self.settings.global_batch_size, self._run_chunk, backend)
            self._turn_profiler()
            unmoved = Unmoved(self.experiment.assembly.optimizers, backend)
            self._meter.restart()
            while not self.state.finished:
                chunks = self._chunks
                if self.step + self._left_of_chunk < self.steps and self._preemption.signal is None:
                    chunks.fetch_next(fetching)
                self.advance(stacked)
                unmoved.tell(self.telemetry.warn_once)
                if not self.state.finished:
                    self.watchdog.begin("data", "the next chunk of data")
                    with self._meter.waiting():
                        stacked = next(self._chunks)
                    if self._chunks is not chunks:  # read anew, which takes its time as it did at the beginning
                        self._meter.restart()
            self.settle()
        return self.evaluation

    def _read_on(self) -> None:
        """Has the chunks that come next be those from this step on."""
        self._chunks = self._next_step.chunks = self.input.chunks_from(self.step, alive=self.watchdog.alive)

    @property
    def _left_of_chunk(self) -> int:
        return self.input.chunk_steps - self.step % self.input.chunk_steps

    def stop_reading(self) -> None:
        """Drops what reads examples ahead: nothing is trained afterwards."""
        self._chunks.close()

    def advance(self, stacked: Batch) -> None:
        """Runs what is left of the chunk of steps that `step` is in, and the hooks that are due then."""
        self.watchdog.begin("step", "training")
        with self._profiler.chunk(self.step):
            self.take_steps(stacked, self._left_of_chunk, run=self._run_chunk)
        self.telemetry.progress(self.step, self._gauges)
        self._turn_profiler()
        due = self._calling.due(self)
        preempted, wanted, writing = self.agreement.any_workers(
            self._preemption.signal is not None,
            self._preemption.take_wish(signal.SIGUSR1),
            self.state.saves.busy,
        )
        if not writing:
            self.state.saves.go_on()
        if due or preempted or wanted:
            with explained(self.input.source):  # what a step raises that was handed out is raised here
                self.train_step.exchange.settle()
            saving = preempted or wanted or any(isinstance(hook, SaveCheckpoint) for hook in due)
            if self._recovery.went_back(self.telemetry, saving=saving):
                self._read_on()
                due = []
        with self._meter.paused():
            if due:
                self._calling.call(due, self)
            if wanted and not preempted and not self.state.finished:
                path = self.save()
                self.settle()
                self.telemetry.note(f"a SIGUSR1: saved as `{path.name}`, and going on")
        if preempted and not self.state.finished:
            self._leave_for_now()

    def eager_step(self) -> dict[str, float]:
        """Takes one step (or round) without tracing, for debugging: `print` and breakpoints work in step functions."""
        one = self.settings.round_steps
        self.take_steps(next(self.input.chunks_from(self.step)), one, run=self.chunk.python_function)
        if (bad_step := int(self.progress.bad_step)) != ALL_WELL:
            raise explain_bad_step(self.train_step, self.input, bad_step)
        return self.figures()

    def warm_up(self, stacked: Batch) -> None:
        """Traces (and compiles) by a chunk that ends where it begins."""
        self.watchdog.begin("tracing", "tracing")
        began, exchange = time.perf_counter(), self.train_step.exchange
        self._run_chunk = self.program(stacked)
        self.evaluations.trace()
        if not self.train_step.backend.steps_here:
            self.averaged.update()
        with self._explained():
            nowhere = exchange.handed(tf.zeros([3], tf.int64))
            exchange.noting(self._run_chunk, stacked, nowhere)
        verb, chunk_steps = "compiled" if self.train_step.whole else "traced", self.input.chunk_steps
        later = "; XLA compiles updates as they are first taken" if self.train_step.runner.compiled else ""
        for what in (*self.train_step.left_out, *self.train_step.remarks):
            self.telemetry.note(what)
        self.telemetry.note(f"{verb} in {time.perf_counter() - began:.1f} s; {chunk_steps} steps a chunk{later}")
        if short := self.settings.short_chunks(chunk_steps):
            self.telemetry.warn_once(short)

    def program(self, stacked: Batch) -> Callable[[Batch, tf.Tensor], object]:
        """Traces a chunk of steps, compiled as asked for or as is found to be fastest by this one's steps."""
        choosing = self._choosing()
        with self._explained():
            return choosing.choose(stacked) if choosing.asked else self._traced()

    @functools.cached_property
    def program_again(self) -> Callable[[Batch, tf.Tensor], object]:
        """A chunk of steps, traced as the run has taken them: by what "auto" has chosen, wherever that was."""
        choosing = self._choosing()
        with self._explained():
            return choosing.again() if choosing.asked else self._traced()

    def _choosing(self) -> Choosing:
        said, alive, look = self.telemetry.note, self.watchdog.alive, self._leave_untrained
        return Choosing(self.train_step, self._traced, self.state, self.agreement, note=said, alive=alive, look=look)

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        """Raises what TensorFlow says of a chunk of steps in the user's terms."""
        repeatable = repeatable_or_refused(self.experiment.deterministic)
        with explained(self.input.source), repeatable, compiled_or_refused():
            yield

    def _traced(self) -> Callable[[Batch, tf.Tensor], object]:
        """Returns a chunk that is called through its one trace: finding that anew would cost about a millisecond."""
        self.chunk = self._make_chunk()
        program: Callable[[Batch, tf.Tensor], object]
        program = self.train_step.exchange.guarded(self.chunk.get_concrete_function())
        return program

    def _turn_profiler(self) -> None:
        """Begins or ends a profile of this process, if it is time to."""
        wished = self._preemption.take_wish(signal.SIGUSR2)
        self._profiler.between_chunks(self.step, wished=wished, telemetry=self.telemetry)

    def take_steps(self, stacked: Batch, count: int, *, run: Callable[[Batch, tf.Tensor], object]) -> None:
        """Takes the next `count` steps of a chunk by `run`; no hook is called."""
        first, end = self.step - self.step % self.input.chunk_steps, min(self.step + count, self.steps)
        with self._explained():
            run(stacked, self.train_step.exchange.handed(tf.constant([first, self.step, end], tf.int64)))
        self._meter.steps += end - self.step
        self.state.step, self._evaluated = end, False

    # --- what hooks see ---------------------------------------------------------------------------------------------

    @property
    def step(self) -> int:
        """Counts the steps that are done."""
        return self.state.step

    @property
    def steps(self) -> int:
        """Counts the steps that there are to do."""
        return self.settings.steps

    @property
    def evaluation(self) -> dict[str, float]:
        """Returns the last figures that were reported, those before a kill among them."""
        return dict(self.state.reported)

    def figures(self) -> dict[str, float]:
        """Returns the weighted means since the last metric line."""
        return figures_of(self.progress.read_sums())

    def take_figures(self) -> dict[str, float]:
        """Returns the figures of a metric line, speed included; the next line starts from nothing."""
        figures = figures_of(self.progress.take_sums())
        spoken = {**figures, **self._rates(), **self.train_step.exchange.figures(), **self._recovery.figures()}
        return {**spoken, **self._meter.take(self.settings.global_batch_size)}

    def check_norms(self) -> None:
        """Raises a `ConfigurationError` where there is no next step that can be looked at."""
        self._next_step.prepare()

    def norms(self) -> dict[str, float]:
        """Returns the norms of gradients, weights and updates of each module, as the next step has them."""
        return self._next_step.norms(self.step)

    def evaluate(self) -> dict[str, float]:
        """Evaluates on all that is held out, and writes the figures."""
        if not self._evaluated:  # a hook of the user's may have asked for it before
            for split, figures in self.evaluations.evaluate(self.watchdog.alive):
                self.report(split, figures)
            self._evaluated = True
        return self.evaluation

    def report(self, split: str, figures: Mapping[str, float]) -> None:
        """Writes figures of how good the task has become; the last ones end up in the run's result."""
        self.telemetry.write(self.step, split, figures)
        self.state.report({short_name(split, name): float(x) for name, x in figures.items()})

    def save(self) -> Path:
        """Begins to save a checkpoint of this moment; returns where. Every worker calls it, the chief writes."""
        try:
            return self.state.save(warn=self.telemetry.warn_once)
        except NotFiniteError as error:
            raise self._leaving_capsule(error, self.step - 1) from None

    def settle(self) -> None:
        """Waits until what is being saved is written; every worker calls it."""
        self.watchdog.begin("save", "writing a checkpoint")
        self.state.settle(note=self.telemetry.note)

    def check_replicas(self) -> None:
        """Raises a `DriftError` where replicas no longer hold the same variables."""
        self.state.check_replicas()

    def stop(self, reason: str) -> None:
        """Ends the run at this step, once all hooks that are due have been called; `reason` is kept with it."""
        self._calling.stop(reason)

    # --- how a run ends ---------------------------------------------------------------------------------------------

    def report_the_end(self) -> None:
        """Has everything reported that is reported at the end of a run, without a step taken."""
        self._calling.check(self)
        for hook in self.settings.hooks:
            if hook.due(self.step, self.step):
                self._calling.call_one(hook, self)
        if self.evaluations:
            self.evaluate()

    def _leaving_capsule(self, error: TapeloopError, step: int) -> TapeloopError:
        try:
            self.settle()  # the step is done again from the newest checkpoint
        except CheckpointError as unwritten:
            self.telemetry.warn_once(str(unwritten))
        if self.state.unsaved_restart:
            return type(error)(f"{error} No capsule is left: no checkpoint has its fresh optimizer yet.")
        error = self._leave_capsule(self.experiment, self.settings, self.workdir, self.input, error, step)
        self.agreement.barrier()  # a worker that left before the chief has written it would end the chief
        return error

    def _leave_untrained(self) -> None:
        """Leaves before the first step if a signal asks for it: what is measured takes its time, and trains nothing."""
        if self.agreement.any_worker(self._preemption.signal is not None):
            raise PreemptedError(
                f"stopped by {self._preemption.name} before the first step: nothing has changed since the last "
                "checkpoint, if there is one. Run the same command again to go on."
            )

    def _leave_for_now(self) -> None:
        self.watchdog.begin("save", "the last checkpoint")
        path = self.save()
        self.settle()
        raise PreemptedError(
            f"stopped by {self._preemption.name} after step {self.step} of {self.steps}; everything is in "
            f"`{path.name}`. Run the same command again to go on."
        )
