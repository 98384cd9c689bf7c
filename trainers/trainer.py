"""The loop around the step: chunks of steps, hooks between them, and the ways a run can end."""

import contextlib
import math
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, Literal

import gin
import tensorflow as tf

from core import checkpoint
from core.data import PerReplica, train_chunks
from core.distribution import make_agreement, make_drift_check
from core.engine import ALL_WELL, Progress, TrainStep, make_chunk
from core.errors import ConfigurationError, NotFiniteError, PreemptedError
from core.task.loss import GRADIENT_NORM, means
from core.telemetry import Telemetry
from core.workers import is_chief
from trainers.averaged import averaged_task
from trainers.evaluator import Evaluator
from trainers.experiment import Experiment
from trainers.explain import explained
from trainers.hooks.base import CheckReplicas, Evaluate, Hook, LogMetrics, SaveCheckpoint
from trainers.meter import Meter
from trainers.not_finite import describe_bad_step
from trainers.workdir import Workdir

REMEDY = (
    "Lower the learning rate, clip gradients (`clip_by_global_norm`), or look for a division, logarithm or square root "
    "of zero in the step function."
)
CHUNK_BYTES = 64 * 2**20  # a chunk's batches wait in memory, and so do the prefetched ones


@gin.configurable
class Trainer:
    """Trains an experiment's task for `steps` steps of `global_batch_size` examples.

    A step's examples are cut into `microbatches`, whose gradients are summed before the one update. Intervals count
    steps; `None` means only at the end. `chunk_steps` is how many steps run for one call from Python (`None`: as many
    as the intervals and memory allow, up to 50). It changes no number, but for last bits where `compile` makes another
    program of each length. `reduce_gradients_in = "bfloat16"` halves what replicas send each other, and costs the
    last bits of gradients.
    """

    def __init__(
        self,
        experiment: Experiment,
        workdir: Workdir,
        *,
        steps: int = gin.REQUIRED,
        global_batch_size: int = gin.REQUIRED,
        microbatches: int = 1,
        chunk_steps: int | None = None,
        log_every: int | None = 100,
        evaluate_every: int | None = 500,
        checkpoint_every: int | None = 500,
        check_replicas_every: int | None = None,
        keep_checkpoints: int = 3,
        compile: bool = False,
        reduce_gradients_in: Literal["bfloat16"] | None = None,
        hooks: Sequence[Hook] = (),
    ):
        counts = {
            "steps": steps,
            "global_batch_size": global_batch_size,
            "microbatches": microbatches,
            "chunk_steps": chunk_steps,
            "log_every": log_every,
            "evaluate_every": evaluate_every,
            "checkpoint_every": checkpoint_every,
            "check_replicas_every": check_replicas_every,
            "keep_checkpoints": keep_checkpoints,
        }
        for name, value in counts.items():
            if value is not None and value < 1:
                raise ConfigurationError(f"`Trainer.{name}` is {value}; it must be at least 1.")
        self.experiment, self.workdir = experiment, workdir
        self.steps, self.global_batch_size, self.microbatches = steps, global_batch_size, microbatches
        self.keep_checkpoints, self.compile = keep_checkpoints, compile
        for hook in hooks:
            if not isinstance(hook, Hook) or not (hook.every is None or hook.every >= 1):
                raise ConfigurationError(
                    f"`Trainer.hooks` holds {hook!r}; each is a `trainers.hooks.Hook` whose `every` is None or at "
                    "least 1."
                )
        every = ["log_every", "evaluate_every", "checkpoint_every", "check_replicas_every"]
        intervals = {f"Trainer.{name}": counts[name] for name in every}
        intervals |= {f"{type(hook).__name__}.every": hook.every for hook in hooks}
        self.chunk_steps = chunk_steps or _longest_chunk(
            [every for every in intervals.values() if every is not None],
            global_batch_size
            * sum(spec.dtype.size * spec.shape.num_elements() for spec in experiment.train_source.spec.values()),
        )
        _check_intervals(intervals, self.chunk_steps)
        self._short_chunks = chunk_steps is None and self.chunk_steps < min(10, steps)

        self.evaluator = None
        if experiment.eval_source is not None:
            self.evaluator = Evaluator(experiment, experiment.eval_source)
        self.averaged = self.evaluator.averaged if self.evaluator else averaged_task(experiment)
        self.hooks: list[Hook] = [LogMetrics(log_every), *hooks]
        self.hooks += [Evaluate(evaluate_every)] if self.evaluator else []
        if check_replicas_every:
            self.hooks += [CheckReplicas(check_replicas_every)]
        self.hooks += [SaveCheckpoint(checkpoint_every)]

        self.step = 0
        self._origin = 0  # examples consumed before step 0; not zero once a run went on with another batch size
        replica_spec = self._replica_chunks(0).element_spec
        self.train_step = TrainStep(
            experiment.assembly,
            {key: tf.TensorSpec(spec.shape[1:], spec.dtype) for key, spec in replica_spec.items()},
            seed=experiment.seed,
            compile=compile,
            reduce_in=tf.as_dtype(reduce_gradients_in) if reduce_gradients_in else None,
        )
        self.progress = Progress(
            {name: spec.sums_of_update for name, spec in self.train_step.specs.items()},
            device=experiment.strategy.extended.worker_devices[0],
        )
        self.chunk = make_chunk(self.train_step, self.chunks().element_spec, self.progress)
        self._run_chunk = self.chunk
        self.evaluation: dict[str, float] = {}
        self.telemetry = Telemetry([])
        self._stop_signal: int | None = None
        self.any_of_us = make_agreement(experiment.strategy)
        self.check_replicas = make_drift_check(experiment.strategy, experiment.variables)
        self._meter = Meter()

    # --- the loop ---------------------------------------------------------------------------------------------------

    def train(self, telemetry: Telemetry | None = None) -> dict[str, float]:
        """Runs from `self.step` to the last step; returns the last evaluation."""
        self.telemetry = telemetry or self.telemetry
        chunks = iter(self.chunks())
        with self._catching_signals():
            with explained(self.experiment.train_source):
                stacked = next(chunks)
            self.warm_up(stacked)
            self.telemetry.progress(self.step)
            self._meter.restart()
            while self.step < self.steps:
                self.advance(stacked)
                if self.step < self.steps:
                    with self._meter.waiting(), explained(self.experiment.train_source):
                        stacked = next(chunks)
        return self.evaluation

    def advance(self, stacked: Mapping[str, tf.Tensor]) -> None:
        """Runs what is left of the chunk of steps that `self.step` is in, and the hooks that are due then."""
        first = self.step - self.step % self.chunk_steps
        end = min(first + self.chunk_steps, self.steps)
        place = tf.constant([first, self.step, end], tf.int64)
        with explained(self.experiment.train_source):
            self._run_chunk(stacked, place)
        self._meter.steps += end - self.step
        self.step = end
        self.telemetry.progress(self.step)
        self._between_chunks()

    def _between_chunks(self) -> None:
        due = [hook for hook in self.hooks if hook.due(self.step, self.steps)]
        stop = self.any_of_us(self._stop_signal is not None)
        if due or stop:
            self._refuse_bad_step()
        with self._meter.paused():
            for hook in due:
                hook(self)
        if stop and self.step < self.steps:
            path = self.save()
            name = signal.Signals(self._stop_signal).name if self._stop_signal else "a signal to another worker"
            raise PreemptedError(
                f"stopped by {name} after step {self.step} of {self.steps}; everything is in `{path.name}`. Run the "
                "same command again to go on."
            )

    def eager_step(self) -> dict[str, float]:
        """One step without tracing, for debugging: `print` and breakpoints work inside step functions."""
        with explained(self.experiment.train_source):
            stacked = next(iter(self.chunks()))
        i = self.step % self.chunk_steps
        values = self.train_step.exchange.run(lambda chunk: {key: x[i] for key, x in chunk.items()}, stacked)
        with explained(self.experiment.train_source):
            result = self.train_step(values, tf.constant(self.step, tf.int64))
        self.progress.bad_step.assign(ALL_WELL if bool(result.healthy) else self.step)
        self.progress.write_sums(result.sums)
        self._refuse_bad_step()
        self.step += 1
        return self.figures()

    def warm_up(self, stacked: Mapping[str, tf.Tensor]) -> None:
        """Traces (and compiles) by a chunk that ends where it begins."""
        began = time.perf_counter()
        # Called through its one trace: finding that anew would cost about a millisecond for every chunk.
        self._run_chunk = self.chunk.get_concrete_function()
        self._run_chunk(stacked, tf.zeros([3], tf.int64))
        verb = "compiled" if self.compile else "traced"
        self.telemetry.note(f"{verb} in {time.perf_counter() - began:.1f} s; {self.chunk_steps} steps a chunk")
        if self._short_chunks:
            self.telemetry.warn_once(
                f"chunks of {self.chunk_steps} steps are slow for small models, and all that the intervals (or 64 MiB "
                "of batches) allow: give `Trainer.log_every` and the like a common divisor, of 50 say."
            )

    def chunks(self) -> Any:
        """The stacked batches from the chunk that `self.step` is in, on each replica its own."""
        return PerReplica(self._replica_chunks, self.experiment.strategy)

    def _replica_chunks(self, replica: int) -> tf.data.Dataset:
        return train_chunks(
            self.experiment.train_source,
            global_batch_size=self.global_batch_size,
            microbatches=self.microbatches,
            chunk_steps=self.chunk_steps,
            first_step=self.step,
            origin=self._origin,
            seed=self.experiment.seed,
            replicas=self.experiment.strategy.num_replicas_in_sync,
            replica=replica,
            synthetic=self.experiment.synthetic,
        )

    def _batch_of_step(self, step: int) -> dict[str, tf.Tensor]:
        """The whole global batch of a step, [microbatches, rows, ...], whatever the replicas."""
        stacked = next(
            iter(
                train_chunks(
                    self.experiment.train_source,
                    global_batch_size=self.global_batch_size,
                    microbatches=self.microbatches,
                    chunk_steps=1,
                    first_step=step % self.chunk_steps if self.experiment.synthetic else step,
                    origin=self._origin,
                    seed=self.experiment.seed,
                )
            )
        )
        return {key: x[0] for key, x in stacked.items()}

    # --- figures ----------------------------------------------------------------------------------------------------

    def figures(self) -> dict[str, float]:
        """The weighted means since the last line. One update's figures go by their own names, several by phase.

        Of two updates, the norms of their gradients are compared as well: the second's over the first's.
        """
        sums = self.progress.read_sums()
        if len(sums) == 1:
            return means(next(iter(sums.values())))
        found = {f"{phase}/{name}": x for phase, figures in sums.items() for name, x in means(figures).items()}
        first, *others = (found[f"{phase}/{GRADIENT_NORM}"] for phase in sums)
        if len(others) == 1 and first > 0.0:  # of two players, does one run away from the other?
            found[f"{GRADIENT_NORM}_ratio"] = others[0] / first
        return found

    def take_figures(self) -> dict[str, float]:
        """The figures of a metric line, speed included; the next line starts from nothing."""
        figures = self.figures()
        self.progress.clear_sums()
        speed = self._meter.take(self.global_batch_size)
        if speed["data_wait"] > 0.2:
            self.telemetry.warn_once(
                f"{speed['data_wait']:.0%} of the time was spent waiting for data. Likely causes: a slow disk, "
                "decoding or transforming examples one by one, too few CPU cores. See what the step alone takes with "
                "`--gin_param='Experiment.synthetic=True' --workdir=DIR`."
            )
        return {**figures, **speed}

    def evaluate(self) -> dict[str, float]:
        """Evaluates on the experiment's `eval_source` and writes the figures."""
        if self.evaluator is None:
            raise ConfigurationError("there is nothing to evaluate on: bind `Experiment.eval_source`.")
        self.report("eval", self.evaluator.evaluate())
        return self.evaluation

    def report(self, split: str, figures: Mapping[str, float]) -> None:
        """Writes figures of how good the task has become; the last ones end up in the run's result."""
        self.telemetry.write(self.step, split, figures)
        named = figures if split == "eval" else {f"{split}/{name}": x for name, x in figures.items()}
        self.evaluation = {**self.evaluation, **named}

    def _refuse_bad_step(self) -> None:
        bad_step = int(self.progress.bad_step)
        if bad_step == ALL_WELL:
            return
        self.step = bad_step
        values = self._batch_of_step(bad_step)
        with explained(self.experiment.train_source):
            found = describe_bad_step(self.train_step, values, bad_step)
        raise NotFiniteError(f"step {bad_step} is not finite: {found}. Nothing of it was saved. {REMEDY}")

    # --- state ------------------------------------------------------------------------------------------------------

    @property
    def variables(self) -> Mapping[str, tf.Variable]:
        """All that is learnt, by path."""
        return self.experiment.variables

    def save(self) -> Path:
        """Saves a checkpoint of this moment; returns where. Every worker calls it, the chief writes."""
        self.check_replicas()  # what has drifted apart isn't worth keeping
        for path, variable in self.variables.items():
            if variable.dtype.is_floating and not tf.reduce_all(tf.math.is_finite(variable)):
                raise NotFiniteError(
                    f"after step {self.step}, `{path}` is not finite, though every loss and gradient was: the update "
                    f"itself overflowed. Nothing was saved. {REMEDY}"
                )
        if not is_chief():
            return checkpoint.path_of(self.workdir.checkpoints, self.step)
        return checkpoint.save(
            self.workdir.checkpoints,
            {**self.variables, **self.progress.variables},
            step=self.step,
            examples=self._origin + self.step * self.global_batch_size,
            config_hash=self.workdir.config_hash,
            keep=self.keep_checkpoints,
            extra={"configuration": dict(self.workdir.configuration)},
        )

    def restore(self, manifest: checkpoint.Manifest) -> None:
        """Goes on from a checkpoint."""
        saved = {path: v for path, v in manifest.variables.items() if path.startswith("figures/")}
        live = self.progress.variables
        same = {path: (tuple(v.shape), v.dtype.name) for path, v in live.items()} == {
            path: (v.shape, v.dtype) for path, v in saved.items()
        }
        if same:
            checkpoint.restore(manifest, {**self.variables, **live})
        else:  # the task reports other figures than it did: the line in flight can't be finished
            checkpoint.restore(manifest, self.variables, partial=["figures/*"] if saved else [])
            self.telemetry.note("the figures of the task have changed: the metric line in flight starts anew")
        self.step = manifest.step
        self._origin = manifest.examples - manifest.step * self.global_batch_size

    @contextlib.contextmanager
    def _catching_signals(self) -> Iterator[None]:
        """SIGTERM and Ctrl-C are remembered and looked at between chunks; a second Ctrl-C interrupts at once."""

        def remember(number: int, _: FrameType | None) -> None:
            self._stop_signal = number
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)

        previous = {number: signal.signal(number, remember) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)


def _longest_chunk(intervals: Sequence[int], step_bytes: int) -> int:
    """The longest chunk, up to 50 steps, that divides all intervals and whose batches stay below `CHUNK_BYTES`."""
    common = math.gcd(*intervals) if intervals else 50
    allowed = max(1, min(50, CHUNK_BYTES // max(1, step_bytes)))
    return max(n for n in range(1, allowed + 1) if common % n == 0)


def _check_intervals(intervals: Mapping[str, int | None], chunk_steps: int) -> None:
    for name, every in intervals.items():
        if every is not None and every % chunk_steps:
            nearest = max(1, round(every / chunk_steps)) * chunk_steps
            raise ConfigurationError(
                f"`{name}` is {every}, which isn't a multiple of `Trainer.chunk_steps` = {chunk_steps}; things "
                f"happen between chunks only. Use {nearest}, or leave `chunk_steps` out to have one chosen that fits."
            )
