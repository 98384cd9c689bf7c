"""The loop around the step: chunks of steps, hooks between them, and the ways a run can end."""

import contextlib
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import tensorflow as tf

from core.distribution import Agreement
from core.engine import ALL_WELL, Progress, make_chunk
from core.errors import ConfigurationError, NotFiniteError, PreemptedError, TapeloopError
from core.task import Batch
from core.telemetry import Telemetry
from trainers.averaged import averaged_task, readable_task
from trainers.bad_step import explain_bad_step
from trainers.capsule.leave import leaving_capsule
from trainers.diagnosis import explained, repeatable_or_refused
from trainers.evaluator import Evaluator
from trainers.experiment import Experiment
from trainers.gauges import Gauge, make_gauges
from trainers.hooks.base import Hook
from trainers.hooks.standard import SaveCheckpoint, standard_hooks
from trainers.input import Input
from trainers.learning_rates import rate_figures
from trainers.looking import NextStep
from trainers.meter import Meter, figures_of
from trainers.preemption import Preemption
from trainers.profiler import Profiler
from trainers.run_state import RunState
from trainers.settings import Settings
from trainers.watchdog import Watchdog
from trainers.workdir import Workdir


class Trainer:
    """Trains an experiment's task as the settings say. It is the `Run` that hooks see."""

    def __init__(
        self, experiment: Experiment, workdir: Workdir, settings: Settings, preemption: Preemption | None = None
    ):
        self.experiment, self.workdir, self.settings = experiment, workdir, settings
        self.input = Input(experiment, settings)
        self.evaluator = Evaluator(experiment, experiment.eval_source) if experiment.eval_source is not None else None
        averaged = self.evaluator.averaged if self.evaluator else averaged_task(experiment)
        self.averaged = readable_task(experiment, averaged)
        self.train_step = settings.train_step(experiment.assembly, self.input.batch_spec, seed=experiment.seed)
        self.progress = Progress(
            {name: spec.sums_of_update for name, spec in self.train_step.specs.items()},
            strategy=experiment.strategy,
        )
        rounds = settings.rounds(self.train_step, experiment.assembly)
        self.chunk = make_chunk(self.train_step, self.input.chunk_spec, self.progress, rounds)
        self.hooks = standard_hooks(settings, evaluates=self.evaluator is not None)
        self.state = RunState(
            experiment,
            workdir,
            settings,
            variables={**experiment.variables, **(rounds.variables if rounds else {})},
            input=self.input,
            progress=self.progress,
            hooks=self.hooks,
        )
        self._rates = rate_figures(experiment.assembly.optimizers, outer=rounds.meeting.outer if rounds else None)
        self.agreement = Agreement(experiment.strategy)
        self.telemetry = Telemetry([])
        self.watchdog = Watchdog()
        self._run_chunk: Callable[[Batch, tf.Tensor], object] = self.chunk
        self._next_step = NextStep(experiment, self.input, self.train_step, steps=settings.steps)
        self._profiler = Profiler(
            workdir.events, settings.profile, total=settings.steps, chunk_steps=self.input.chunk_steps
        )
        self._meter = Meter()
        self._gauges: Mapping[str, Gauge] | None = None
        self._preemption = preemption or Preemption()
        self._stop_reason: str | None = None
        self._evaluated_step: int | None = None

    # --- the loop ---------------------------------------------------------------------------------------------------

    def train(
        self, telemetry: Telemetry | None = None, *, once_traced: Callable[[], None] = lambda: None
    ) -> dict[str, float]:
        """Runs to the last step, or until a hook stops the run; returns the last evaluation."""
        self.telemetry = telemetry or self.telemetry
        self._check_hooks()
        chunks, exchange = self.input.chunks_from(self.step), self.train_step.exchange
        self._next_step.chunks = chunks
        with self._preemption.granted(), contextlib.closing(self._profiler):
            self.watchdog.begin("the first chunk of data")
            stacked = next(chunks)
            self.warm_up(stacked)
            once_traced()
            self.telemetry.progress(self.step)
            if self.telemetry.live:
                self._gauges = make_gauges(self._meter, self.settings.global_batch_size, self._run_chunk, exchange)
            self._turn_profiler()
            self._meter.restart()
            while not self.state.finished:
                self.advance(stacked)
                if not self.state.finished:
                    self.watchdog.begin("the next chunk of data")
                    with self._meter.waiting():
                        stacked = next(chunks)
        return self.evaluation

    def advance(self, stacked: Batch) -> None:
        """Runs what is left of the chunk of steps that `step` is in, and the hooks that are due then."""
        self.watchdog.begin("training")
        with self._profiler.chunk(self.step):
            self.take_steps(stacked, self.input.chunk_steps - self.step % self.input.chunk_steps, run=self._run_chunk)
        self.telemetry.progress(self.step, self._gauges)
        self._turn_profiler()
        due = [hook for hook in self.hooks if hook.due(self.step, self.steps)]
        preempted, wanted = self.agreement.any_workers(
            self._preemption.signal is not None, self._preemption.take_wish(signal.SIGUSR1)
        )
        if due or preempted or wanted:
            with explained(self.input.source):  # what a step raises that was handed out is raised here
                self.train_step.exchange.settle()
            self._refuse_bad_step(self._leaving_capsule)
        with self._meter.paused():
            if due:
                self._call(due)
            if wanted and not preempted and not self.state.finished:
                self.telemetry.note(f"a SIGUSR1: saved as `{self.save().name}`, and going on")
        if preempted and not self.state.finished:
            self._leave_for_now()

    def eager_step(self) -> dict[str, float]:
        """Takes one step (or round) without tracing, for debugging: `print` and breakpoints work in step functions."""
        one = self.settings.local_steps or 1
        self.take_steps(next(self.input.chunks_from(self.step)), one, run=self.chunk.python_function)
        self._refuse_bad_step()
        return self.figures()

    def warm_up(self, stacked: Batch) -> None:
        """Traces (and compiles) by a chunk that ends where it begins."""
        self.watchdog.begin("tracing")
        began, exchange = time.perf_counter(), self.train_step.exchange
        # Called through its one trace: finding that anew would cost about a millisecond for every chunk.
        self._run_chunk = exchange.guarded(self.chunk.get_concrete_function())
        if self.evaluator:
            self.evaluator.trace()
        if exchange.remote:
            self.averaged.update()
        with repeatable_or_refused(self.experiment.deterministic):
            nowhere = exchange.handed(tf.zeros([3], tf.int64))
            exchange.noting(self._run_chunk, stacked, nowhere)
        verb, chunk_steps = "compiled" if self.settings.compile else "traced", self.input.chunk_steps
        self.telemetry.note(f"{verb} in {time.perf_counter() - began:.1f} s; {chunk_steps} steps a chunk")
        if self.settings.chunk_steps is None and chunk_steps < min(10, self.steps):
            self.telemetry.warn_once(
                f"chunks of {chunk_steps} steps are slow for small models, and all that the intervals (or 64 MiB "
                "of batches) allow: give `Trainer.log_every` and the like a common divisor, of 50 say."
            )

    def _turn_profiler(self) -> None:
        """Begins or ends a profile of this process, if it is time to."""
        wished = self._preemption.take_wish(signal.SIGUSR2)
        self._profiler.between_chunks(self.step, wished=wished, telemetry=self.telemetry)

    def take_steps(self, stacked: Batch, count: int, *, run: Callable[[Batch, tf.Tensor], object]) -> None:
        """Takes the next `count` steps of a chunk by `run`; no hook is called."""
        first, end = self.step - self.step % self.input.chunk_steps, min(self.step + count, self.steps)
        with explained(self.input.source):
            run(stacked, self.train_step.exchange.handed(tf.constant([first, self.step, end], tf.int64)))
        self._meter.steps += end - self.step
        self.state.step = end

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
        spoken = {**figures, **self._rates(), **self.train_step.exchange.figures()}
        return {**spoken, **self._meter.take(self.settings.global_batch_size)}

    def check_norms(self) -> None:
        """Raises a `ConfigurationError` where there is no next step that can be looked at."""
        self._next_step.prepare()

    def norms(self) -> dict[str, float]:
        """Returns the norms of gradients, weights and updates of each module, as the next step has them."""
        return self._next_step.norms(self.step)

    def evaluate(self) -> dict[str, float]:
        """Evaluates on the experiment's `eval_source` and writes the figures."""
        if self.evaluator is None:
            raise ConfigurationError("there is nothing to evaluate on: bind `Experiment.eval_source`.")
        if self._evaluated_step != self.step:  # a hook of the user's may have asked for it before
            self.report("eval", self.evaluator.evaluate(self.watchdog.alive))
            self._evaluated_step = self.step
        return self.evaluation

    def report(self, split: str, figures: Mapping[str, float]) -> None:
        """Writes figures of how good the task has become; the last ones end up in the run's result."""
        self.telemetry.write(self.step, split, figures)
        before = "" if split == "eval" else f"{split}/"
        self.state.reported |= {f"{before}{name}": float(x) for name, x in figures.items()}

    def save(self) -> Path:
        """Saves a checkpoint of this moment; returns where. Every worker calls it, the chief writes."""
        try:
            return self.state.save(warn=self.telemetry.warn_once)
        except NotFiniteError as error:
            raise self._leaving_capsule(error, self.step - 1) from None

    def check_replicas(self) -> None:
        """Raises a `DriftError` where replicas no longer hold the same variables."""
        self.state.check_replicas()

    def stop(self, reason: str) -> None:
        """Ends the run at this step, once all hooks that are due have been called; `reason` is kept with it."""
        self._stop_reason = self._stop_reason or reason

    # --- how a run ends ---------------------------------------------------------------------------------------------

    def report_the_end(self) -> None:
        """Has everything reported that is reported at the end of a run, without a step taken."""
        self._check_hooks()
        for hook in self.settings.hooks:
            if hook.due(self.step, self.step):
                self._call_hook(hook)
        if self.evaluator:
            self.evaluate()

    def _call(self, due: Sequence[Hook]) -> None:
        """Calls the hooks that are due; if one of them stops the run, also those that belong to its end.

        What is saved then says already that the run is over: a kill after it would let it go on otherwise.
        """
        ends = False
        for hook in self.hooks:
            saves = isinstance(hook, SaveCheckpoint)
            if saves and not self.state.finished and self.agreement.any_worker(self._stop_reason is not None):
                ends = True
                self.state.stopped = self.agreement.first_text(self._stop_reason)
                for other in self.hooks:
                    if other not in due and other is not hook and other.due(self.step, self.step):
                        self._call_hook(other)
            if saves:
                self.state.complete = self.state.finished
            if hook in due or (saves and ends):
                self._call_hook(hook)

    def _check_hooks(self) -> None:
        self.watchdog.begin("checking the hooks")
        for hook in self.hooks:
            hook.check(self)

    def _call_hook(self, hook: Hook) -> None:
        self.watchdog.begin(f"the hook `{type(hook).__name__}`")
        hook(self)

    def _refuse_bad_step(self, leaving: Callable[..., TapeloopError] = lambda error, step: error) -> None:
        bad_step = int(self.progress.bad_step)
        if bad_step == ALL_WELL:
            return
        self.state.step = bad_step
        raise leaving(explain_bad_step(self.train_step, self.input, bad_step), bad_step)

    def _leaving_capsule(self, error: TapeloopError, step: int) -> TapeloopError:
        error = leaving_capsule(self.experiment, self.settings, self.workdir, self.input, error, step)
        self.agreement.barrier()  # a worker that left before the chief has written it would end the chief
        return error

    def _leave_for_now(self) -> None:
        self.watchdog.begin("the last checkpoint")
        path = self.save()
        raise PreemptedError(
            f"stopped by {self._preemption.name} after step {self.step} of {self.steps}; everything is in "
            f"`{path.name}`. Run the same command again to go on."
        )
