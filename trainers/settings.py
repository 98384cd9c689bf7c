"""Settings of the trainer and of the dry run, with their checks."""

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import gin
import tensorflow as tf

from core.arguments import MOST, is_size
from core.checkpoint import Keep
from core.distribution import Backend
from core.engine import Assembly, TrainStep
from core.errors import ConfigurationError, shown
from core.optimizers import Transform
from core.parallel.local_steps import LocalSteps
from core.precision import Precision
from trainers.hooks import Hook
from trainers.options.bad_steps import Policies
from trainers.options.checkpoints import better_of, check_keeping
from trainers.options.compile import compile_words, what_to_compile
from trainers.process.watchdog import Limits

MOST_CALLS = 256
MAX_CHUNK_STEPS = 50
MAX_CHUNK_BYTES = 64 * 2**20  # limit for a chunk's batches in memory; prefetched ones are added


@gin.configurable("Trainer")
@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings of a training, bound as `Trainer.*`: `steps` steps of `global_batch_size` examples.

    A step's examples are divided into `microbatches`, whose gradients are summed before the one update. A
    `memory_budget` per device, such as "8 GiB", chooses their number, and then recomputation: docs/fit-into-memory.md.
    `stages` changes the batch or the source from given steps on: docs/input.md#stages. Intervals are numbers of steps;
    `None` means only at the end. With `checkpoint_every_minutes` a run also saves by the clock: after the first chunk
    of steps that ends this long after the last save. `chunk_steps` is the number of steps per call from Python (`None`:
    as many as intervals and memory allow, up to 50). The chunk length affects only rounding, and only if `compile`
    makes a program of each length. For a slow source, `parallel_calls` chunks are gathered at once: this takes memory,
    and doesn't change results.

    `precision` is the dtype in which phases compute, "float32", "bfloat16" or "float16", or one by phase:
    `{"g": "bfloat16"}`. Variables, losses and sums stay float32. `reduce_gradients_in = "bfloat16"` halves the bytes
    that replicas exchange, and rounds gradients.

    `compile` selects what XLA compiles: nothing ("off"), all that it can ("xla"), or the fastest choice, measured in
    the first seconds of a run ("auto"). `{"d": "xla"}` compiles one update: docs/make-it-fast.md.

    With `local_steps`, each replica trains alone on its rows for this many steps. Then the weights are averaged, or
    updated by the `outer` optimizer: docs/choose-a-strategy.md.

    A non-finite step ends the run by default. `on_nonfinite = "skip"` skips such steps, at most `max_skips` in a row.
    "rollback" returns to the newest checkpoint and skips the examples since, at most `max_rollbacks` times. `None` is 3
    for both limits. `on_spike` does the same for a gradient of `spike_factor` (`None`: 10) times the largest recent
    norm: docs/checkpoints.md.

    The last `keep_checkpoints` checkpoints are kept, and those of every `keep_every` steps. `keep_best` also keeps the
    best by a metric of the evaluation, as "max accuracy" or "min loss": docs/checkpoints.md.

    `profile` is the first and the last step of a profile, which covers whole chunks: docs/runs.md#profiles.

    The command ends if a section of the run (a chunk of steps, a hook, an evaluation, a checkpoint) hangs. A section
    hangs if it shows no progress for `section_deadline` seconds, or for ten times its longest pause so far; `None` sets
    no deadline. `section_deadlines` sets deadlines by section: docs/checkpoints.md.
    """

    steps: int = gin.REQUIRED
    global_batch_size: int = gin.REQUIRED
    microbatches: int = 1
    memory_budget: str | None = None
    stages: Mapping[int, Mapping[str, Any]] | None = None
    parallel_calls: int = 1
    chunk_steps: int | None = None
    log_every: int | None = 100
    evaluate_every: int | None = 500
    checkpoint_every: int | None = 500
    checkpoint_every_minutes: float | None = None
    check_replicas_every: int | None = None
    keep_checkpoints: int = 3
    keep_every: int | None = None
    keep_best: str | None = None
    local_steps: int | None = None
    outer: Transform | None = None
    compile: str | bool | Mapping[str, str | bool] = "off"
    precision: str | Mapping[str, str] = "float32"
    reduce_gradients_in: Literal["bfloat16"] | None = None
    on_nonfinite: Literal["raise", "skip", "rollback"] = "raise"
    on_spike: Literal["skip", "rollback"] | None = None
    spike_factor: float | None = None
    max_skips: int | None = None
    max_rollbacks: int | None = None
    section_deadline: float | None = Limits.general
    section_deadlines: Mapping[str, float | None] | None = None
    hooks: Sequence[Hook] = ()
    profile: Sequence[int] | None = None

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            counts, optional = field.type in (int, int | None), field.type == int | None
            if counts and not (is_size(value) or (optional and value is None)):
                raise ConfigurationError(
                    f"`Trainer.{field.name}` is {shown(value)}; it must be at least 1. Give a whole number"
                    f"{', or None' if optional else ''}: 10000, not 1e4."
                )
            if counts and value is not None and value > MOST:
                raise ConfigurationError(
                    f"`Trainer.{field.name}` is {shown(value)}; it must be at most {MOST} (2 ** 31 - 1)."
                )
        minutes: Any = self.checkpoint_every_minutes
        if minutes is not None and not (type(minutes) in (int, float) and 0 < minutes < math.inf):
            raise ConfigurationError(
                f"`Trainer.checkpoint_every_minutes` is {shown(minutes)}; give a number of minutes above 0, or None to "
                "save by steps alone."
            )
        if self.parallel_calls > MOST_CALLS:
            raise ConfigurationError(
                f"`Trainer.parallel_calls` is {self.parallel_calls}; each is a thread with a chunk of its own: give at "
                f"most {MOST_CALLS}."
            )
        assert self.limits  # which refuse what is no time
        assert self.budget is None or self.budget > 0
        if not isinstance(self.hooks, list | tuple):
            raise ConfigurationError(f"`Trainer.hooks` is {shown(self.hooks)}; give a list: `[@SampleGrid()]`.")
        for hook in self.hooks:
            if not isinstance(hook, Hook):
                raise ConfigurationError(
                    f"`Trainer.hooks` holds {shown(hook)}; each is a `trainers.hooks.Hook`, made by a call: "
                    "`@SampleGrid()`, whose `every` is None or at least 1."
                )
            if not (hook.every is None or is_size(hook.every)):
                raise ConfigurationError(
                    f"`Trainer.hooks` holds `{type(hook).__name__}`, whose `every` is {shown(hook.every)}; a hook is "
                    "one whose `every` is None or at least 1. Give a whole number of steps: 10000, not 1e4."
                )
        Precision(self.precision)  # which refuses unknown dtypes
        object.__setattr__(self, "compile", compile_words(self.compile))
        self.policies.check()
        self._check_keeping()
        if self.local_steps is not None:
            self._check_rounds(self.local_steps)
        elif self.outer is not None:
            raise ConfigurationError(
                "`Trainer.outer` has no effect without `Trainer.local_steps`, the steps between two of its updates: "
                "give both, or leave it out."
            )
        if self.stages is not None:
            self._check_stages(self.stages)
        if self.chunk_steps is not None:
            self._check_intervals(self.chunk_steps)

    @functools.cached_property
    def budget(self) -> int | None:
        """Returns `memory_budget` in bytes."""
        if self.memory_budget is None:
            return None
        from trainers.options.sizes import bytes_of_text

        return bytes_of_text(self.memory_budget, "`Trainer.memory_budget`")

    @property
    def keep(self) -> Keep:
        """Returns the rules for which checkpoints are kept."""
        best = None if self.keep_best is None else better_of(self.keep_best, "Trainer.keep_best")
        return Keep(self.keep_checkpoints, self.keep_every, best)

    @functools.cached_property
    def limits(self) -> Limits:
        """Returns the deadlines of sections."""
        return Limits(self.section_deadline, self.section_deadlines or {})

    def train_step(self, assembly: Assembly, batch_spec: Mapping[str, tf.TensorSpec], *, seed: int) -> TrainStep:
        """Makes the training step of these settings, for batches with this spec."""
        train_step = TrainStep(
            assembly,
            batch_spec,
            seed=seed,
            steps=self.steps,
            precision=self.precision,
            compile=what_to_compile(compile_words(self.compile)),
            reduce_in=tf.as_dtype(self.reduce_gradients_in) if self.reduce_gradients_in else None,
            backend=self.backend(assembly),
            noise_scale=any(hook.noise_scale for hook in self.hooks),
        )
        if isinstance(self.compile, Mapping):  # names with "off" are checked as well
            train_step.check_updates(self.compile)
        return train_step

    def backend(self, assembly: Assembly) -> Backend:
        """Returns the strategy's backend for these settings."""
        if self.local_steps is None:
            return assembly.backend
        backend = LocalSteps(assembly.strategy, self.local_steps, self.outer)
        backend.check(assembly, global_batch_size=self.global_batch_size)
        return backend

    def at(self, step: int) -> "Settings":
        """Returns the settings of the stage that begins or lasts at `step`."""
        # A stage's source isn't a setting: `Input` reads it.
        changed = {name: value for name, value in self._changed_at(step).items() if hasattr(self, name)}
        return dataclasses.replace(self, **changed) if changed else self

    def end_of_stage(self, step: int) -> int:
        """Returns the step at which the stage of `step` ends."""
        return min((first for first in self.stages or {} if step < first < self.steps), default=self.steps)

    def said_at(self, step: int) -> str:
        """Returns a line about the stage that begins or lasts at `step`."""
        changed = {name: getattr(value, "name", value) for name, value in self._changed_at(step).items()}
        return f"stage from step {step} on: {', '.join(f'{name} {value}' for name, value in changed.items())}"

    def _changed_at(self, step: int) -> Mapping[str, Any]:
        if self.stages is None:
            return {}
        from trainers.options.stages import settings_at

        return settings_at(self.stages, step)

    @property
    def round_steps(self) -> int:
        """Returns how many steps replicas take between two synchronizations."""
        return self.local_steps or 1

    @functools.cached_property
    def policies(self) -> Policies:
        """Returns the policies for bad steps."""
        names = [field.name for field in dataclasses.fields(Policies)]
        return Policies(**{name: getattr(self, name) for name in names})

    @property
    def intervals(self) -> list[tuple[str, int]]:
        """Returns all intervals in steps, each with the name that binds it."""
        names = ("log_every", "evaluate_every", "checkpoint_every", "check_replicas_every")
        every = [(f"Trainer.{name}", getattr(self, name)) for name in names]
        every += [(hook.interval_name, hook.every) for hook in self.hooks]
        every += [("Trainer.stages", first) for first in self.stages or {} if first < self.steps]
        return [(name, steps) for name, steps in every if steps is not None]

    def steps_per_chunk(self, step_bytes: int) -> int:
        """Returns `chunk_steps`, or else the longest chunk that divides all intervals and fits into memory.

        A chunk contains whole rounds of `local_steps`.
        """
        if self.chunk_steps is not None:
            return self.chunk_steps
        unit = self.round_steps
        common = math.gcd(*(every for _, every in self.intervals)) or unit * max(1, MAX_CHUNK_STEPS // unit)
        allowed = max(unit, min(MAX_CHUNK_STEPS, MAX_CHUNK_BYTES // max(1, step_bytes)))
        return max(n for n in range(unit, allowed + 1, unit) if common % n == 0)

    def short_chunks(self, chunk_steps: int) -> str | None:
        """Returns a warning if chunks are short."""
        if self.chunk_steps is not None or chunk_steps >= min(10, self.steps):
            return None
        return (
            f"chunks of {chunk_steps} steps are slow for small models, and all that the intervals (or 64 MiB of "
            "batches) allow: give `Trainer.log_every` and the like a common divisor, of 50 say."
        )

    def _check_keeping(self) -> None:
        kept, (saved, evaluated) = self.keep, (self.checkpoint_every, self.evaluate_every)
        check_keeping(kept.every, self.keep_best, checkpoint_every=saved, evaluate_every=evaluated)
        for hook in self.hooks:
            hook.check_kept(kept, saved)

    def _check_stages(self, stages: Mapping[int, Mapping[str, Any]]) -> None:
        from trainers.options.stages import check_stages

        check_stages(stages)
        if self.memory_budget is not None:
            raise ConfigurationError(
                "`Trainer.memory_budget` chooses `microbatches` for one batch, and `Trainer.stages` changes the batch: "
                "remove the budget, and give `microbatches` in each stage."
            )

    def _check_intervals(self, chunk_steps: int) -> None:
        for name, every in self.intervals:
            if every % chunk_steps:
                raise ConfigurationError(
                    f"`{name}` is {every}, which isn't a multiple of `Trainer.chunk_steps` = {chunk_steps}; things "
                    f"happen between chunks only. Use {_nearest(every, chunk_steps)}, or leave `chunk_steps` out to "
                    "have one chosen that fits."
                )

    def _check_rounds(self, local_steps: int) -> None:
        if not isinstance(self.outer, Transform | None):
            raise ConfigurationError(
                f"`Trainer.outer` is {shown(self.outer)}; give an optimizer, made by a call: `@outer/sgd()`, or None, "
                "which averages the weights."
            )
        if self.reduce_gradients_in is not None:
            raise ConfigurationError(
                f"`Trainer.reduce_gradients_in` is {shown(self.reduce_gradients_in)}, but with `Trainer.local_steps` "
                "no gradients are sent: leave it out."
            )
        whole = [("Trainer.steps", self.steps), *self.intervals]
        for name, steps in [*whole, ("Trainer.chunk_steps", self.chunk_steps or local_steps)]:
            if steps % local_steps:
                raise ConfigurationError(
                    f"`{name}` is {steps}, which isn't a multiple of `Trainer.local_steps` = {local_steps}; only where "
                    f"a round of local steps ends do replicas hold the same. Use {_nearest(steps, local_steps)}."
                )


def _nearest(steps: int, unit: int) -> int:
    """Returns the positive multiple of `unit` that is nearest to `steps`."""
    return max(1, round(steps / unit)) * unit


@gin.configurable("DryRun")
def given_peak(*, peak: float | None = None) -> float | None:
    """Returns `DryRun.peak`, the peak operations per second of a device that can't be measured here."""
    if peak is not None and not (isinstance(peak, float | int) and 0 < peak < float("inf")):
        raise ConfigurationError(
            f"`DryRun.peak` is {shown(peak)}; it is a device's peak operations per second: give a number, as 312e12. "
            "See docs/make-it-fast.md#a-lower-bound."
        )
    return peak
